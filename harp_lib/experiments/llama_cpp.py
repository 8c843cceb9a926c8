"""llama.cpp as a second engine: what it answers and how fast, of a GGUF file, by the bindings ``xllamacpp``."""

from pathlib import Path
from typing import Any

import torch

LETTERS = "root ::= [ -~]+"  # a grammar that text is held to


class LlamaCpp:
    """A GGUF file in llama.cpp, on the CPU with as many threads as torch has.

    Parameters
    ----------
    path : str or Path
        The file.
    context : int
        Tokens that the KV cache has room for.
    cache_type : {"F16", "F32"}
        Of keys and values.
    verbosity : int
        What llama.cpp logs to standard error: from 5 on how large its KV cache is, with -1 nothing.

    Raises
    ------
    ImportError
        If ``xllamacpp`` is not installed; it has wheels for most machines.
    """

    def __init__(self, path: str | Path, context: int, cache_type: str = "F16", verbosity: int = -1) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.verbosity = verbosity
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.n_gpu_layers = context, 1, 0
        params.fit_params = False
        params.cache_ram_mib = 0  # prompts are not kept
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = torch.get_num_threads()
        params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{cache_type}")
        self.server = xllamacpp.Server(params)

    def write(self, prompt: str | list[int], tokens: int) -> dict[str, Any]:
        """The most likely ``tokens`` after a prompt, as ``text``; ``prompt`` and ``generation`` in tokens a second."""
        try:
            answer = self._ask(prompt, tokens, ignore_eos=True)
        except RuntimeError:  # a random model may write bytes that are no text
            answer = self._ask(prompt, tokens, grammar=LETTERS)
        timings = answer["timings"]
        speeds = {"prompt": timings["prompt_per_second"], "generation": timings["predicted_per_second"]}
        return {"text": answer["choices"][0]["text"], **speeds}

    def next_token(self, prompt: str | list[int], top: int) -> tuple[int, dict[int, float]]:
        """How many tokens a prompt has, and log-probabilities of the likeliest ``top`` tokens after it, by id."""
        # They are of the model; what is written is held to letters, for a token without text would not be reported.
        answer = self._ask(prompt, 1, n_probs=top, grammar=LETTERS)
        (first,) = answer["choices"][0]["logprobs"]["content"]
        return answer["usage"]["prompt_tokens"], {each["id"]: each["logprob"] for each in first["top_logprobs"]}

    def _ask(self, prompt: str | list[int], tokens: int, **more: Any) -> dict[str, Any]:
        asked = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "cache_prompt": False}
        return self.server.handle_completions(asked | more)
