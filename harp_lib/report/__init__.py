"""Stored cells in, claims, tables and figures out; no model is loaded here."""
