"""HARP: High-Layer Attention Pruning with Rescaling, as a library.

A public name is imported when it is first used, so that ``import harp_lib`` is quick.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_PUBLIC = {  # module and its public names
    "export.gguf": ("save_gguf",),
    "export.nemotron_nas": ("save_nemotron_nas",),
    "methods": ("make_plan",),
    "methods.alpha_search": ("search_alphas", "AlphaSearch", "ALPHA_GRID"),
    "methods.fit_alpha": ("fit_alphas",),
    "methods.refit": ("refit_values",),
    "models.checkpoint": ("save_pruned", "load_pruned"),
    "models.load": ("load_model",),
    "names": ("METHODS",),
    "pruning.plan": ("PruningPlan",),
    "pruning.surgery": ("apply_plan",),
    "text.perplexity": ("perplexity", "word_perplexity"),
}
__all__ = [name for names in _PUBLIC.values() for name in names]


def __getattr__(name: str) -> Any:
    for module, names in _PUBLIC.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
