"""What a plan does to a model; ships inside every saved checkpoint."""
