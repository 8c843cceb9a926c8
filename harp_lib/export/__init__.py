"""What writes a model for other programs: GGUF for llama.cpp, nemotron-nas for vLLM and MLX-LM."""
