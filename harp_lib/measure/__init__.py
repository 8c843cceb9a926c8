"""Models and texts, and what is measured on them: perplexity, benchmarks, time."""
