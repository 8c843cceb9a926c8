"""The names of the models that the companion brings along; apart, so that the command line knows them without torch."""

MODEL_NAMES = ("smollm2-135m", "gemma3-270m", "tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-gemma2")
