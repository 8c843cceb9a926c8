"""Texts, and how well a model predicts them."""
