"""Algorithm 1 of the paper: greedy top-down search of the rescaling alpha on perplexity."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.measure.likelihood import (
    Batch,
    Tokens,
    evaluating,
    head_nll,
    make_batches,
    perplexity_from_nll,
    total_nll,
)
from harp_lib.methods.journal import Journal, fingerprint
from harp_lib.pruning.architecture import check_attention, check_dense, check_weights, decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_value_only

ALPHA_GRID = tuple(i / 10 for i in range(11))


@dataclass(frozen=True)
class AlphaSearch:
    """What a search found.

    Attributes
    ----------
    alphas : list of float
        The best alpha of each pruned layer, the top layer first, as the paper prints them.
    perplexities : dict
        ``perplexities[layer index][alpha]``, per predicted token.
    seconds : float
        Time spent, in all sittings of an interrupted search.
    layer_passes : int
        How often one decoder layer was run over the whole text.
    num_model_layers : int
        Decoder layers of the model.
    not_unimodal : list of int
        Layers whose evaluated perplexities do not fall and then rise with alpha. ``strategy="bracket"`` may have
        missed the best grid value there.
    """

    alphas: list[float]
    perplexities: dict[int, dict[float, float]]
    seconds: float
    layer_passes: int
    num_model_layers: int
    not_unimodal: list[int]

    @property
    def plan(self) -> PruningPlan:
        """HARP's plan with the alphas that were found."""
        return PruningPlan.value_only(self.num_model_layers, self.alphas)

    @property
    def best(self) -> list[float]:
        """Perplexity after each searched layer, the top layer first."""
        return [min(curve.values()) for _, curve in sorted(self.perplexities.items(), reverse=True)]


def search_alphas(
    model: PreTrainedModel,
    tokens: Tokens,
    num_layers: int,
    grid: Sequence[float] = ALPHA_GRID,
    reuse_prefix: bool = True,
    resume: str | Path | None = None,
    lower: str = "dense",
    strategy: str = "grid",
    cache_device: str | torch.device | None = None,
    progress: bool = True,
) -> AlphaSearch:
    """Search alpha for the top layers, one after the other, from the top (paper, Algorithm 1).

    Parameters
    ----------
    model : PreTrainedModel
        A dense model. It is as before afterwards, also after an error.
    tokens : Tensor or sequence
        The text to minimise perplexity on, as in :func:`harp_lib.perplexity`.
    num_layers : int
        How many layers to search, counted from the top.
    grid : sequence of float
        Candidate alphas, rising. Of equal perplexities the smallest alpha wins.
    reuse_prefix : bool
        Compute the hidden states below the searched layers once, since no alpha changes them, and run each
        candidate from there. ``False`` runs the whole model for each candidate, which is what Algorithm 1 says.
    resume : path, optional
        File that takes each finished candidate. A search that was interrupted continues from it.
    lower : {"dense", "pruned"}
        What layers that are still to be searched are: unpruned, or value-only with alpha = 1. The paper's text says
        the first, the initial vector of Algorithm 1 may be read as the second.
    strategy : {"grid", "bracket"}
        Evaluate the whole grid, or close in on the minimum of a curve that falls and then rises, with about half of
        the evaluations.
    cache_device : device, optional
        Where the reused hidden states live, ``num_layers`` arrays of tokens × d; default: the model's device.
    progress : bool
        Show a progress bar with the best perplexity so far.

    Returns
    -------
    AlphaSearch

    Raises
    ------
    ValueError
        For an empty text, a bad grid, more layers than the model has, a pruned or unsupported model, a ``resume``
        file of another search, or a perplexity that is not finite (the layer and alpha are named).
    """
    grid = [float(alpha) for alpha in grid]
    _check_arguments(grid, lower, strategy)
    check_dense(model)
    total = len(decoder_layers(model))
    if not 1 <= num_layers <= total:
        raise ValueError(
            f"num_layers is {num_layers}; {type(model).__name__} has {total} layers, 1 … {total} can be searched"
        )
    searched = list(range(total - 1, total - 1 - num_layers, -1))
    check_attention(model, searched)
    check_weights(model, PruningPlan.value_only(total, dict.fromkeys(searched, 1.0)))
    batches = make_batches(tokens)
    scored = sum(batch.num_scored for batch in batches)

    options = {"layers": searched, "grid": grid, "lower": lower, "reuse_prefix": reuse_prefix}
    options["scored"] = [batch.scored for batch in batches]
    journal = Journal(resume, fingerprint(model, [batch.ids for batch in batches], options))
    best = dict.fromkeys(searched, 1.0) if lower == "pruned" else {}
    begin = time.perf_counter()
    if reuse_prefix:
        evaluator = ReusedPrefix(model, batches, searched, best, cache_device, progress)
    else:
        evaluator = WholeModel(model, batches)
    journal.seconds += time.perf_counter() - begin

    name = "alpha search" if reuse_prefix else "alpha search, literal"
    curves: dict[int, dict[float, float]] = {}
    with tqdm(total=num_layers * len(grid), desc=name, unit="candidate", disable=not progress) as bar:
        for layer in searched:
            curve = Curve(layer, dict(best), evaluator, journal, scored, bar)
            best[layer] = _bracket(curve, grid) if strategy == "bracket" else min(grid, key=curve)
            curves[layer] = dict(sorted(curve.values.items()))
            bar.update(len(grid) - len(curve.values))  # what a bracket did not need
            evaluator.forget(layer)
    candidate_passes = sum(evaluator.passes(layer) * len(curve) for layer, curve in curves.items())
    return AlphaSearch(
        alphas=[best[layer] for layer in searched],
        perplexities=curves,
        seconds=journal.seconds,
        layer_passes=evaluator.prefix_passes + candidate_passes,
        num_model_layers=total,
        not_unimodal=[layer for layer, curve in curves.items() if not is_unimodal(list(curve.values()))],
    )


@dataclass
class Curve:
    """Perplexity as a function of one layer's alpha, each value computed once, journaled and shown."""

    layer: int
    others: dict[int, float]  # alphas of the other value-only layers
    evaluator: "WholeModel | ReusedPrefix"
    journal: Journal
    scored: int
    bar: tqdm
    values: dict[float, float] = field(default_factory=dict)

    def __call__(self, alpha: float) -> float:
        if alpha not in self.values:
            alphas = self.others | {self.layer: alpha}
            nll = self.journal.remember(self.layer, alpha, lambda: self.evaluator.nll(self.layer, alphas))
            perplexity = self.values[alpha] = perplexity_from_nll(nll, self.scored)
            if not math.isfinite(perplexity):
                raise ValueError(
                    f"perplexity is {perplexity} with alpha = {alpha} in layer {self.layer}; "
                    "try a wider dtype (float32 or bfloat16 instead of float16)"
                )
            self.bar.update()
            self.bar.set_postfix_str(f"layer {self.layer}, best perplexity {min(self.values.values()):.4g}")
        return self.values[alpha]


class WholeModel:
    """Evaluates a candidate as Algorithm 1 says: the whole model over the whole text."""

    prefix_passes = 0

    def __init__(self, model: PreTrainedModel, batches: list[Batch]) -> None:
        self.model, self.batches = model, batches

    def nll(self, layer: int, alphas: dict[int, float]) -> float:
        with temporarily_value_only(self.model, alphas):
            return total_nll(self.model, self.batches)

    def passes(self, layer: int) -> int:
        return len(decoder_layers(self.model))

    def forget(self, layer: int) -> None:
        pass


class ReusedPrefix:
    """Evaluates a candidate from the hidden states that enter its layer, computed once for all layers.

    Everything above is value-only, so the layers need neither positions nor masks and can be called one by one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        batches: list[Batch],
        searched: list[int],
        lower: dict[int, float],
        cache_device: str | torch.device | None,
        progress: bool,
    ) -> None:
        self.model, self.batches, self.layers = model, batches, decoder_layers(model)
        self.hidden: dict[int, list[torch.Tensor]] = {layer: [] for layer in searched}  # each (B, N, d)
        self.prefix_passes = len(self.layers)

        def record(layer: int):
            def hook(module: torch.nn.Module, args: tuple) -> None:
                self.hidden[layer].append(args[0].to(cache_device or args[0].device))

            return hook

        handles = [self.layers[layer].register_forward_pre_hook(record(layer)) for layer in searched]
        try:
            with torch.no_grad(), evaluating(model), temporarily_value_only(model, lower):
                quiet = not progress or len(batches) < 8
                for batch in tqdm(batches, desc="hidden states", unit="batch", leave=False, disable=quiet):
                    model.get_decoder()(input_ids=batch.ids.to(model.device), use_cache=False)
        finally:
            for handle in handles:
                handle.remove()

    @torch.no_grad()
    def nll(self, layer: int, alphas: dict[int, float]) -> float:
        above, total = self.layers[layer:], 0.0
        with (
            evaluating(self.model),
            temporarily_value_only(self.model, {k: a for k, a in alphas.items() if k >= layer}),
        ):
            for batch, hidden in zip(self.batches, self.hidden[layer], strict=True):
                hidden = hidden.to(next(above[0].parameters()).device)
                for module in above:
                    hidden = module(hidden, position_embeddings=None)
                total += head_nll(self.model, self.model.get_decoder().norm(hidden), batch)
        return total

    def passes(self, layer: int) -> int:
        return len(self.layers) - layer

    def forget(self, layer: int) -> None:
        del self.hidden[layer]


def _bracket(evaluate: Callable[[float], float], grid: Sequence[float]) -> float:
    """Minimum over a grid by golden-section search, exact where the values fall and then rise."""
    low, high = 0, len(grid) - 1
    while high - low > 2:
        left, right = _golden(low, high)
        if evaluate(grid[left]) <= evaluate(grid[right]):
            high = right
        else:
            low = left
    return min(grid[low : high + 1], key=evaluate)


def _golden(low: int, high: int) -> tuple[int, int]:
    """Two inner indices, golden section of low … high, different from each other."""
    step = max(1, round((high - low) * 0.382))
    left, right = low + step, high - step
    return (left, right) if left < right else (left, left + 1)


def count_passes(num_model_layers: int, num_layers: int, candidates: int) -> tuple[int, int]:
    """Layer passes over the text that a search takes: literal, and with reused hidden states."""
    above = num_layers * (num_layers + 1) // 2  # 1 + 2 + … layers from the searched one to the top
    return num_layers * candidates * num_model_layers, num_model_layers + candidates * above


def is_unimodal(values: list[float]) -> bool:
    """Whether values fall to their minimum and rise after it."""
    lowest = values.index(min(values))
    return values[: lowest + 1] == sorted(values[: lowest + 1], reverse=True) and values[lowest:] == sorted(
        values[lowest:]
    )


def _check_arguments(grid: Sequence[float], lower: str, strategy: str) -> None:
    if not grid:
        raise ValueError("the alpha grid is empty; give at least one value")
    if not all(math.isfinite(alpha) for alpha in grid) or list(grid) != sorted(set(grid)):
        raise ValueError(f"the alpha grid has to be finite numbers, rising, each once; got {list(grid)}")
    for name, value, choices in (("lower", lower, ("dense", "pruned")), ("strategy", strategy, ("grid", "bracket"))):
        if value not in choices:
            raise ValueError(f"unknown {name} {value!r}; choose from {', '.join(choices)}")
