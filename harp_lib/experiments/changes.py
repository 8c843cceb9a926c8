"""Notebook 09's changes: what happens to attention in some layers of a model, and how it is fitted.

A change is a *method* (what stands in place of attention), the layers (which *ranking* they come
from), and the calibration text (how many kinds, how many tokens, which draw).
"""

import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from harp_lib.experiments.context import SEARCHED, Context
from harp_lib.experiments.costs import NBL, costs_left
from harp_lib.experiments.passkeys import CALIBRATION_DIGITS, passkeys
from harp_lib.experiments.search import alphas_of, search_cell, search_rows
from harp_lib.experiments.texts import described, layer_rows, scalar_rows
from harp_lib.methods.alpha_search import ALPHA_GRID, search_alphas
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.fit_alpha import fit_alpha_by_layer
from harp_lib.methods.norm_alpha import norm_alpha_by_layer
from harp_lib.methods.refit import RIDGE, refit_values
from harp_lib.methods.rivals import RIVALS, nbl, nbl_maps
from harp_lib.names import DENSE, HARP, REFIT
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.results import Cell, Result, rows_of
from harp_lib.text.perplexity import Window, perplexity_from_nll

NO_ATTENTION = "alpha-0"
# Alpha, the same in all layers.
CONSTANT = {NO_ATTENTION: 0.0, "alpha-0.3": 0.3, "alpha-0.5": 0.5, "alpha-1": 1.0}
ALPHA_SINGLE = "alpha-single"  # the best one for all layers, on the text that HARP searches on
ALPHA_SHUFFLED = "alpha-shuffled"  # HARP's, in another order over the layers
ALPHA_FIT_SEARCHED = "alpha-fit-searched"  # by least squares, on the text that HARP searches on
ALPHA_SEARCH = "alpha-search"  # HARP's search, on the text that others are fitted on
IN_FLOAT32 = "alpha-float32"  # HARP's search in float32, of a model that computes in bfloat16
IN_PAIRS = "alpha-in-pairs"  # HARP's search with each document twice in a batch
OTHER_SEARCHES = (ALPHA_SEARCH, IN_FLOAT32, IN_PAIRS)
# What reads the text that HARP searches on, and no calibration text.
ON_SEARCHED = (ALPHA_SINGLE, ALPHA_FIT_SEARCHED, IN_FLOAT32, IN_PAIRS)
ALPHA_NORM = "alpha-norm"
ALPHA_FIT = "alpha-fit"
FITTED = (ALPHA_FIT, NBL, REFIT)  # in any layers, top or chosen
# Each with a cell that says what the fit took.
WITH_FIT = (*FITTED, ALPHA_NORM, ALPHA_FIT_SEARCHED)
FIT_BY_LAYER = {
    ALPHA_FIT: fit_alpha_by_layer,
    ALPHA_FIT_SEARCHED: fit_alpha_by_layer,
    ALPHA_NORM: norm_alpha_by_layer,
    NBL: nbl_maps,
}
TOP = "top"


@dataclass(eq=False)
class Change:
    """One change of a model.

    Attributes
    ----------
    context : Context
    method : str
    layers : tuple of int
        Rising.
    ranking : str
        Where the layers come from: ``top``, or a ranking.
    texts : int
        Kinds of calibration text.
    samples : int
        Pieces of calibration text, of all kinds together.
    draw : int
        Which draw of the calibration text, or of another order of HARP's alphas.
    without : int, optional
        A layer of the ranking that keeps its attention.
    prompts : int
        Pass keys in the calibration text.
    """

    context: Context
    method: str
    layers: tuple[int, ...] = ()
    ranking: str = ""
    texts: int = 0
    samples: int = 0
    draw: int = 0
    without: int | None = None
    prompts: int = 0

    @property
    def lowest(self) -> int:
        """The lowest layer in which something changes; the number of layers if nothing does."""
        return min(self.layers, default=self.context.num_layers)

    @cached_property
    def calibration(self) -> list[torch.Tensor]:
        """The calibration text, a piece of ``(tokens,)`` after the other."""
        if self.method in ON_SEARCHED:
            searched = self.context.text(self.context.corpora[0], SEARCHED)
            return [window.ids for window in searched.windows]
        pieces = list(fitted_blocks(self.context, self.texts, self.samples, self.draw))
        if self.prompts:
            settings = self.context.profile["frontier"]["passkey"]
            prompts, _ = passkeys(
                self.context, settings["lengths"], depths=3, keys=2, digits=CALIBRATION_DIGITS
            )
            pieces += [window.ids for window in prompts.windows[: self.prompts]]
        return pieces

    @property
    def calibration_tokens(self) -> int:
        if self.method in (HARP, ALPHA_SHUFFLED, *ON_SEARCHED):
            return self.context.searched_tokens
        if not self.texts:
            return 0
        return sum(len(piece) for piece in self.calibration)

    @property
    def about(self) -> dict[str, Any]:
        """The columns of its cells."""
        about = {
            "method": self.method,
            "texts": self.texts,
            "calibration_tokens": self.calibration_tokens,
            "seed": self.draw,
            "prompts": self.prompts,
            "layers": len(self.layers),  # how many; its cells' inputs say which
        }
        if self.ranking:
            about["ranking"] = self.ranking
        if self.without is not None:
            about["without"] = self.without
        return about

    @property
    def inputs(self) -> dict[str, Any]:
        """What its cells depend on."""
        inputs = {
            **common_inputs(self.context),
            "change": self.about,
            "which": list(self.layers),
        }
        if self.method in (HARP, ALPHA_SHUFFLED):
            inputs["alphas"] = self._alphas()
        elif self.method in ON_SEARCHED:
            searched = self.context.text(self.context.corpora[0], SEARCHED)
            inputs["searched"] = described(searched.corpus)
        elif self.texts:
            inputs |= self.context.piece_inputs
        return inputs

    def applied(self) -> AbstractContextManager:
        """The context in which the model is changed."""
        model = self.context.model
        if self.method == NBL:
            return nbl(model, self.fitted)
        if self.method == REFIT:
            return temporarily_pruned(model, self.fitted.plan, weights=self.fitted.weights)
        if self.method in RIVALS:
            stream = self.stream() if self.texts else None
            return RIVALS[self.method](model, stream, self.layers)
        plan = PruningPlan.value_only(self.context.num_layers, self._alphas())
        return temporarily_pruned(model, plan)

    def _alphas(self) -> dict[int, float]:
        """Alpha of each layer that becomes value-only."""
        if self.method in CONSTANT:
            return dict.fromkeys(self.layers, CONSTANT[self.method])
        if self.method in FIT_BY_LAYER:
            return self.fitted
        if self.method == DENSE:
            return {}
        if self.method in OTHER_SEARCHES:
            return alphas_of(self.context.store.get(self.search_cell()))
        if self.method == ALPHA_SINGLE:
            return dict.fromkeys(self.layers, self.best_single())
        searched = top_alphas(self.context, len(self.layers))
        alphas = [searched[layer] for layer in self.layers]
        if self.method == ALPHA_SHUFFLED:
            alphas = another_order(alphas, self.draw)
        return dict(zip(self.layers, alphas, strict=True))

    def best_single(self) -> float:
        """The alpha of the grid that is best for all layers, on the text that HARP searches on."""
        rows = rows_of(self.context.store.get(self.grid_cell()))
        return float(rows.loc[rows["value"].astype(float).idxmin(), "alpha"])

    def grid_cell(self) -> Cell:
        """Perplexity with each alpha of the grid in all layers, on the text that HARP searches."""
        text = self.context.text(self.context.corpora[0], SEARCHED)

        def compute() -> Result:
            rows = []
            for alpha in ALPHA_GRID:
                alphas = dict.fromkeys(self.layers, alpha)
                nll = sum(text.nll(PruningPlan.value_only(self.context.num_layers, alphas)))
                value = perplexity_from_nll(nll, sum(text.tokens))
                rows.append({"quantity": "perplexity", "alpha": alpha, "value": value})
            return {"rows": rows}

        return Cell({"what": "grid", **self.inputs}, compute, self.about)

    def search_cell(self) -> Cell:
        """The search of one of ``OTHER_SEARCHES``, which goes on where it was interrupted."""
        inputs = {"what": "search", **self.inputs}
        return Cell(inputs, self._search, self.about, resumes=True)

    def _search(self, kept: Path) -> Result:
        """HARP's search on another text, in float32, or with each document twice in a batch."""
        context = self.context
        if self.method == ALPHA_SEARCH:
            text = torch.stack(self.calibration)  # (samples, tokens)
            tokens = text[:, 1:].numel()
        else:
            text, tokens = self._searched()
        if self.method == IN_PAIRS:
            text = [window for window in text for _ in range(2)]
        if self.method == IN_FLOAT32:
            context = replace(context, profile=context.profile | {"dtype": "float32"})
        found = search_alphas(context.model, text, len(self.layers), resume=kept)
        return {"rows": search_rows(found, tokens)}

    def _searched(self) -> tuple[list[Window], int]:
        """The windows that HARP searches on, and how many of their tokens are predicted.

        Not the text itself, which would hold the model while another one is loaded.
        """
        text = self.context.text(self.context.corpora[0], SEARCHED)
        return text.windows, sum(text.tokens)

    def stream(self) -> LayerStream:
        """The calibration text as it enters the lowest changed layer.

        What lies below is dense, and run once for all changes that are fitted on the same text:
        ask for those that begin lowest first. A draw that few changes read is not kept.
        """
        text = (self.method in ON_SEARCHED, self.texts, self.samples)
        kept = self.context.calibrated
        if self.draw or self.prompts:
            kept = {}
        if text not in kept:
            kept.clear()
            kept[text] = LayerStream(self.context.model, self.calibration)
        kept[text].entering(self.lowest)
        return kept[text].fork()

    @property
    def _is_kept_refit(self) -> bool:
        """Whether it is the refit that notebooks 04 and 05 show as a method."""
        in_harps_layers = len(self.layers) == self.context.num_pruned
        return self.method == REFIT and self.texts == 1 and in_harps_layers

    @cached_property
    def fitted(self) -> Any:
        """By layer alpha or NBL's map, or a :class:`Refit`.

        HARP's own layers refitted on one kind of text are kept for other notebooks too.
        """
        if self._is_kept_refit:
            return self.context.refit()
        stream = self.stream()
        if self.method == REFIT:
            return refit_values(self.context.model, stream, len(self.layers), self.layers)
        return FIT_BY_LAYER[self.method](self.context.model, stream, self.layers)

    def forget(self) -> None:
        """Let go of what was fitted."""
        for name in ("fitted", "calibration"):
            self.__dict__.pop(name, None)

    def fit(self) -> Result:
        """What a fit found and took, and the shares of the dense model's costs that are left."""
        if self._is_kept_refit:
            fitted = self.fitted
            seconds = fitted.seconds  # it may be an earlier one
        else:
            seconds = self.stream().seconds  # up to the lowest layer, though other changes share it
            begin = time.perf_counter()
            fitted = self.fitted
            seconds += time.perf_counter() - begin
        rows = []
        if self.method == REFIT:
            rows = layer_rows("explained", fitted.explained)
        elif self.method != NBL:
            rows = layer_rows("alpha", fitted)
        return {"rows": rows + scalar_rows(seconds=seconds, **self.costs_left())}

    def fit_cell(self) -> Cell:
        """The cell of :meth:`fit`, which other units may read."""
        return Cell({"what": "fit", **self.inputs}, self.fit, self.about)

    def costs_left(self) -> dict[str, float]:
        """Shares of the dense model's costs that are left, counted; see :func:`costs_left`."""
        tokens = self.context.profile["baselines"]["cost_tokens"]
        return costs_left(self.context.model, self.method, self.layers, tokens)


def common_inputs(context: Context) -> dict[str, Any]:
    """What the cells of every change and ranking depend on."""
    return {
        **context.inputs,
        "calibration": context.profile["frontier"]["calibration"],
        "seed": context.seed,
        "ridge": RIDGE,
        "context": context.longest_window,
        "read": [described(context.corpus(name)) for name in context.corpora],
    }


def top_alphas(context: Context, count: int) -> dict[int, float]:
    """Alpha of the top layers by HARP's search: notebook 03's for as many layers, or a deeper one.

    Of greedy searches, the longer one begins like the shorter one, but for rounding in bfloat16.
    """
    return alphas_of(context.store.get(top_search_cell(context, count)))


def top_search_cell(context: Context, count: int) -> Cell:
    """The search that gives ``count`` top layers their alpha."""
    num_layers = context.num_pruned if count <= context.num_pruned else deepest(context)
    return search_cell(context, context.corpora[0], num_layers)


def deepest(context: Context) -> int:
    """The most layers that are changed, or that HARP prunes."""
    return max(*layer_counts(context), compared(context), context.num_pruned)


def layer_counts(context: Context) -> list[int]:
    """How many layers are changed, falling."""
    shares = context.profile["frontier"]["shares"].get(context.name)
    if not shares:
        return [context.num_pruned]
    return layers_of(context, shares)


def compared(context: Context) -> int:
    """How many top layers are given to HARP's rivals, its repeated searches and constant alphas.

    It is a share of all layers, by default the profile's own number.
    """
    share = context.profile["frontier"]["compared"].get(context.name)
    if share is None:
        return context.num_pruned
    [count] = layers_of(context, [share])
    return count


def another_order(values: Sequence[float], draw: int) -> list[float]:
    """Values in the ``draw``-th random order: none is the first order again, or an earlier one.

    Few values have few orders, and once these are used up an order comes again.
    """
    orders = [list(values)]
    for seed in range(1, 1 + draw):
        generator = random.Random(seed)
        order = list(values)
        for _ in range(100):
            generator.shuffle(order)
            if order not in orders:
                break
        orders.append(order)
    return orders[-1]


def layers_of(context: Context, shares: Sequence[float]) -> list[int]:
    """Numbers of layers that are such shares of all, falling."""
    return sorted({max(1, round(share * context.num_layers)) for share in shares}, reverse=True)


def ranked_blocks(context: Context, draw: int) -> torch.Tensor:
    """The half of a draw of calibration text that layers are ranked on, ``(samples, tokens)``."""
    samples, _ = context.profile["frontier"]["calibration"]
    return _blocks(context, 2, 0, samples // 2, draw)


def fitted_blocks(context: Context, texts: int, samples: int, draw: int) -> torch.Tensor:
    """Calibration text that layers are fitted on, ``(samples, tokens)``: not what ranked them."""
    whole, _ = context.profile["frontier"]["calibration"]
    return _blocks(context, texts, whole // 4, samples, draw)


def _blocks(context: Context, texts: int, begin: int, samples: int, draw: int) -> torch.Tensor:
    """Equally many samples of the first ``texts`` corpora, after ``begin`` samples of each."""
    _, tokens = context.profile["frontier"]["calibration"]
    each = samples // texts
    blocks = []
    for name in context.corpora[:texts]:
        drawn = context.blocks(context.corpus(name), begin + each, tokens, draw)
        blocks.append(drawn[begin:])
    return torch.cat(blocks)
