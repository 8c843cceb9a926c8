"""Benchmarks, likelihoods, time, and a look into a layer."""
