"""Stock llama.cpp, to run what :func:`harp_lib.save_gguf` wrote."""

import os
from pathlib import Path
from typing import Any

import torch

LETTERS = "root ::= [ -~]+"  # a grammar that llama.cpp holds text to


class LlamaCpp:
    """A GGUF file in llama.cpp, on the CPU; needs the package ``xllamacpp``.

    It uses as many threads as torch has.

    Parameters
    ----------
    path : str or Path
        The GGUF file.
    context : int
        Tokens that its KV cache has room for.
    cache_type : {"F16", "F32"}
        Type of keys and values in the cache.
    verbosity : int
        A verbosity of 5 logs the size of the cache.
    """

    def __init__(
        self, path: str | Path, context: int, cache_type: str = "F16", verbosity: int = -1
    ) -> None:
        import xllamacpp

        kind = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{cache_type}")
        params = xllamacpp.CommonParams()
        params.verbosity = verbosity
        params.model.path = os.path.expanduser(path)
        params.n_ctx = context
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.fit_params = False
        params.cache_ram_mib = 0  # prompts are not kept
        params.cpuparams.n_threads = torch.get_num_threads()
        params.cpuparams_batch.n_threads = torch.get_num_threads()
        params.cache_type_k = kind
        params.cache_type_v = kind
        self.server = xllamacpp.Server(params)

    def write(self, prompt: str | list[int], tokens: int) -> dict[str, Any]:
        """The most likely ``tokens`` after a prompt.

        Returns
        -------
        dict
            ``text``, and the speeds of reading the prompt (``prompt``) and of writing
            (``generation``), in tokens a second.
        """
        try:
            answer = self.ask(prompt, tokens, ignore_eos=True)
        except RuntimeError:  # a random model may write bytes that are no text
            answer = self.ask(prompt, tokens, grammar=LETTERS)
        return {
            "text": answer["choices"][0]["text"],
            "prompt": answer["timings"]["prompt_per_second"],
            "generation": answer["timings"]["predicted_per_second"],
        }

    def ask(self, prompt: str | list[int], tokens: int, **options: Any) -> dict[str, Any]:
        """The answer of llama.cpp's server to a request for a completion."""
        request = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "cache_prompt": False}
        return self.server.handle_completions(request | options)
