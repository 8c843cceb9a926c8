"""Where models come from and where they go: loading, the registry, checkpoints."""
