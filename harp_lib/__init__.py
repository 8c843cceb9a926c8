"""HARP: High-Layer Attention Pruning with Rescaling, as a library.

Names are imported on first use, so that ``import harp_lib`` and the command line stay quick.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_HOME = {
    "load_model": "measure.models",
    "PruningPlan": "pruning.plan",
    "apply_plan": "pruning.surgery",
    "save_pruned": "pruning.checkpoint",
    "load_pruned": "pruning.checkpoint",
    "save_gguf": "pruning.gguf",
    "search_alphas": "methods.alpha_search",
    "AlphaSearch": "methods.alpha_search",
    "ALPHA_GRID": "methods.alpha_search",
    "refit_values": "methods.refit",
    "perplexity": "measure.text",
    "word_perplexity": "measure.text",
    "make_plan": "methods",
    "METHODS": "methods",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
