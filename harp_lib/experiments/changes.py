"""Notebook 09's changes: what happens to attention in some layers of a model, and how it is fitted.

A change is a *method* (what stands in place of attention), the layers (which *ranking* they come
from), and the calibration text (how many kinds, how many tokens, which draw).
"""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from harp_lib import accounting
from harp_lib.experiments.job import REFIT, Job, scalar_rows
from harp_lib.experiments.passkeys import CALIBRATION_DIGITS, passkeys
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.fit_alpha import fit_alpha_by_layer
from harp_lib.methods.norm_alpha import norm_alpha_by_layer
from harp_lib.methods.refit import Refit, refit_values
from harp_lib.methods.rivals import RIVALS, nbl, nbl_maps
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned

DENSE = "dense"
NO_ATTENTION = "alpha-0"
CONSTANT = {NO_ATTENTION: 0.0, "alpha-0.5": 0.5, "alpha-1": 1.0}  # alpha, the same in all layers
HARP = "harp"
ALPHA_SEARCH = "alpha-search"  # HARP's search, on the text that others are fitted on
IN_FLOAT32 = "alpha-float32"  # HARP's search in float32, of a model that computes in bfloat16
IN_PAIRS = "alpha-in-pairs"  # HARP's search with each document twice in a batch
OTHER_SEARCHES = (ALPHA_SEARCH, IN_FLOAT32, IN_PAIRS)
ALPHA_NORM = "alpha-norm"
ALPHA_FIT = "alpha-fit"
NBL = "nbl"
FITTED = (ALPHA_FIT, NBL, REFIT)  # in any layers, top or chosen
WITH_FIT = (*FITTED, ALPHA_NORM)  # each with a cell that says what the fit took
TOP = "top"
WITHOUT_TEXT = (DENSE, NO_ATTENTION, "windowed")


@dataclass(frozen=True)
class Change:
    """What is changed, without how it is computed.

    Attributes
    ----------
    method : str
    layers : tuple of int
        Rising.
    ranking : str
        Where the layers come from: ``top``, or a ranking.
    texts : int
        Kinds of calibration text.
    samples : int
        Pieces of calibration text, of all kinds together.
    seed : int
        The draw of the calibration text.
    without : int, optional
        A layer of the ranking that keeps its attention.
    prompts : int
        Pass keys in the calibration text.
    """

    method: str
    layers: tuple[int, ...] = ()
    ranking: str = ""
    texts: int = 0
    samples: int = 0
    seed: int = 0
    without: int | None = None
    prompts: int = 0


class Prepared:
    """A change of one job's model: its name, its coordinates, and the context in which it holds."""

    def __init__(self, job: Job, change: Change, alphas: Callable[[], dict[int, float]]) -> None:
        self.job = job
        self.change = change
        self.searched_alphas = alphas  # of the top layers, by layer

    @property
    def lowest(self) -> int:
        """The lowest layer in which something changes; the number of layers if nothing does."""
        return min(self.change.layers, default=self.job.num_layers)

    @cached_property
    def calibration(self) -> list[torch.Tensor]:
        """The calibration text, a piece of ``(tokens,)`` after the other."""
        change = self.change
        pieces = list(fitted_blocks(self.job, change.texts, change.samples, change.seed))
        if change.prompts:
            settings = self.job.profile["frontier"]["passkey"]
            prompts, _ = passkeys(self.job, settings["lengths"], 3, 2, CALIBRATION_DIGITS)
            pieces += [window.ids for window in prompts.windows[: change.prompts]]
        return pieces

    @property
    def calibration_tokens(self) -> int:
        if self.change.method in (HARP, IN_FLOAT32, IN_PAIRS):
            settings = self.job.profile["alpha_search"]
            return settings["documents"] * settings["tokens"]
        if not self.change.texts:
            return 0
        return sum(len(piece) for piece in self.calibration)

    @property
    def name(self) -> str:
        """What the folder of its cells is called; for people, never parsed."""
        change = self.change
        if change.method == DENSE:
            return DENSE
        name = f"{change.method}-{change.ranking}-{len(change.layers):02d}"
        if change.texts:
            name += f"-{change.texts}x{self.calibration_tokens}"
        if change.seed:
            name += f"-seed-{change.seed}"
        if change.without is not None:
            name += f"-without-{change.without:02d}"
        if change.prompts:
            name += "-prompts"
        return name

    @property
    def coordinates(self) -> dict[str, Any]:
        """The columns of its cells."""
        change = self.change
        coordinates = {
            "method": change.method,
            "texts": change.texts,
            "calibration_tokens": self.calibration_tokens,
            "seed": change.seed,
            "prompts": change.prompts,
            "layers": len(change.layers),
        }
        if change.ranking:
            coordinates["ranking"] = change.ranking
        if change.without is not None:
            coordinates["without"] = change.without
        return coordinates

    def context(self) -> AbstractContextManager:
        """The context in which the model is changed."""
        model = self.job.model
        layers = self.change.layers
        method = self.change.method
        if method == DENSE:
            return temporarily_pruned(model, PruningPlan(self.job.num_layers, {}))
        if method in CONSTANT:
            constant = dict.fromkeys(layers, CONSTANT[method])
            return temporarily_pruned(model, self._value_only(constant))
        if method in (HARP, *OTHER_SEARCHES):
            searched = self.searched_alphas()
            return temporarily_pruned(
                model, self._value_only({layer: searched[layer] for layer in layers})
            )
        if method in (ALPHA_FIT, ALPHA_NORM):
            return temporarily_pruned(model, self._value_only(self.fitted_alphas))
        if method == NBL:
            return nbl(model, self.fitted_maps)
        if method == REFIT:
            return temporarily_pruned(model, self.refit.plan, weights=self.refit.weights)
        stream = None
        if self.change.texts:
            stream = LayerStream(model, self.calibration)
        return RIVALS[method](model, stream, layers)

    @cached_property
    def fitted_alphas(self) -> dict[int, float]:
        stream = LayerStream(self.job.model, self.calibration)
        fit = norm_alpha_by_layer if self.change.method == ALPHA_NORM else fit_alpha_by_layer
        return fit(self.job.model, stream, self.change.layers)

    @cached_property
    def fitted_maps(self) -> dict[int, torch.Tensor]:
        stream = LayerStream(self.job.model, self.calibration)
        return nbl_maps(self.job.model, stream, self.change.layers)

    @cached_property
    def refit(self) -> Refit:
        """HARP's own layers refitted on one kind of text are kept for other notebooks too."""
        if self.change.texts == 1:
            return self.job.refit()
        layers = self.change.layers
        return refit_values(self.job.model, self.calibration, len(layers), layers)

    def forget(self) -> None:
        """Let go of what was fitted."""
        for name in ("fitted_alphas", "fitted_maps", "refit", "calibration"):
            self.__dict__.pop(name, None)

    def fit_rows(self) -> list[dict[str, Any]]:
        """What a fit found and took, and the shares of the dense model's costs that are left."""
        begin = time.perf_counter()
        rows = []
        if self.change.method in (ALPHA_FIT, ALPHA_NORM):
            rows += _rows_by_layer("alpha", self.fitted_alphas)
        elif self.change.method == NBL:
            _ = self.fitted_maps
        else:
            rows += _rows_by_layer("explained", self.refit.explained)
        seconds = time.perf_counter() - begin
        if self.change.method == REFIT:
            seconds = self.refit.seconds  # it may be an earlier one
        rows += scalar_rows(seconds=seconds)
        return rows + scalar_rows(**costs_left(self.job, self.change))

    def _value_only(self, alphas: dict[int, float]) -> PruningPlan:
        return PruningPlan.value_only(self.job.num_layers, alphas)


def _rows_by_layer(quantity: str, values: dict[int, float]) -> list[dict[str, Any]]:
    return [
        {"quantity": quantity, "layer": layer, "value": value} for layer, value in values.items()
    ]


def ranked_blocks(job: Job, seed: int) -> torch.Tensor:
    """The half of a draw of calibration text that layers are ranked on, ``(samples, tokens)``."""
    samples, _ = job.profile["frontier"]["calibration"]
    return _blocks(job, 2, 0, samples // 2, seed)


def fitted_blocks(job: Job, texts: int, samples: int, seed: int) -> torch.Tensor:
    """Calibration text that layers are fitted on, ``(samples, tokens)``: not what ranked them."""
    whole, _ = job.profile["frontier"]["calibration"]
    return _blocks(job, texts, whole // 4, samples, seed)


def _blocks(job: Job, texts: int, begin: int, samples: int, seed: int) -> torch.Tensor:
    """Equally many samples of the first ``texts`` corpora, after ``begin`` samples of each."""
    _, tokens = job.profile["frontier"]["calibration"]
    each = samples // texts
    blocks = []
    for name in job.corpora[:texts]:
        drawn = job.blocks(job.corpus(name), begin + each, tokens, seed)
        blocks.append(drawn[begin:])
    return torch.cat(blocks)


def costs_left(job: Job, change: Change) -> dict[str, float]:
    """Shares of the dense model's operations, bytes of cache and parameters, counted.

    Prefill is of HARP's tail-only kind, and output projections are folded. NBL has a matrix (d, d)
    in place of values (d, K·Dh) and output projection (K·Dh, d).
    """
    tokens = job.profile["baselines"]["cost_tokens"]
    config = job.model.config
    plan = PruningPlan.value_only(job.num_layers, dict.fromkeys(change.layers, 1.0))
    dense = _costs(config, None, tokens, job.model.dtype)
    pruned = _costs(config, plan, tokens, job.model.dtype)
    if change.method == NBL:
        attention = job.model.get_decoder().layers[0].self_attn
        width = config.hidden_size
        more_weights = width * (width - 2 * attention.v_proj.out_features)  # of each layer
        in_tail = _num_in_tail(change.layers, job.num_layers)
        full = len(change.layers) - in_tail
        pruned["prefill"] += 2 * more_weights * (full * tokens + in_tail)
        pruned["decode"] += 2 * more_weights * len(change.layers)
        pruned["parameters"] += more_weights * len(change.layers)
    shares = {f"{name} left": pruned[name] / dense[name] for name in pruned}
    return shares | {"counted at": tokens}


def _costs(
    config: Any, plan: PruningPlan | None, tokens: int, dtype: torch.dtype
) -> dict[str, float]:
    return {
        "prefill": accounting.prefill_flops(config, plan, tokens, True, True, tail_only=True),
        "decode": accounting.decode_flops(config, plan, tokens, True),
        "cache": accounting.kv_bytes_per_token(config, plan, dtype),
        "parameters": accounting.parameters(config, plan, fold_output=True),
    }


def _num_in_tail(layers: Iterable[int], num_layers: int) -> int:
    """How many of the layers form an unbroken run at the top."""
    count = 0
    while num_layers - 1 - count in set(layers):
        count += 1
    return count


def fit_result(prepared: Prepared) -> dict[str, Any]:
    """The result of a cell that says what a fit found and took."""
    return {"rows": prepared.fit_rows()}


def fit_cell(prepared: Prepared) -> Callable[[], dict[str, Any]]:
    """What computes that cell."""
    return partial(fit_result, prepared)
