"""Notebook 04: baselines tuned, every method planned at one budget, and each plan evaluated."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from typing import Any

import torch

from harp_lib.experiments.context import CALIBRATION, HELD_OUT, SEARCHED, Context
from harp_lib.experiments.search import searched_alphas
from harp_lib.experiments.texts import Text, document_rows
from harp_lib.methods import make_plan, planner
from harp_lib.methods.calibration import Planner
from harp_lib.names import BASELINES, CATALOGUE, DENSE, EVALUATED, HARP_FLAP, Method
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import Cell, Result, behind_bar, values_of


@dataclass(frozen=True)
class Reading:
    """A method as :func:`make_plan` knows it, its options, and its calibration text.

    Attributes
    ----------
    method : str
    options : dict
        Of :func:`make_plan`.
    bos : bool
        Whether pieces of calibration text may begin with a BOS token.
    draw : int
        The draw of the calibration text.
    """

    method: str
    options: dict[str, bool] = field(default_factory=dict)
    bos: bool = True
    draw: int = 0


WITHOUT_BOS = {
    f"{method}-without-bos": Reading(method, bos=False)
    for method in ("wanda-sp", "llm-pruner", "flap", HARP_FLAP)
}
"""Controls on a model whose calibration pieces begin with BOS: pieces without it, as published."""
OTHER_READINGS = {
    "flap-squared": Reading("flap", {"squared": True}),
    "harp+flap-even": Reading(HARP_FLAP, {"evenly": True}),
}
"""Methods with other options.

Upstream squares FLAP's scores of W_O once more than the paper prints. HARP+FLAP with as many FFN
channels from each layer is a control: it tells what the rule costs by which FLAP chooses channels.
"""
REDRAWN = ("flap", "llm-pruner")  # baselines that may be calibrated on more draws of their text


def readings(context: Context) -> dict[str, Reading]:
    """The other readings that are tried on a model."""
    chosen = dict(OTHER_READINGS)
    if context.pieces_begin_with_bos:
        chosen |= WITHOUT_BOS
    draws = context.profile["baselines"]["draws"].get(context.name, 0)  # beside the first
    for draw, method in product(range(1, 1 + draws), REDRAWN):
        chosen[f"{method}-draw-{draw}"] = Reading(method, draw=draw)
    return chosen


class Planning:
    """The plans of one model: how many groups go, from which layer ranges, by which text."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.settings = context.profile["baselines"]
        self.corpus = context.corpora[0]
        self.calibration_corpus = context.corpus(self.corpus)
        self.groups = num_groups(decoder_layers(context.model)[0].self_attn)  # of each layer
        self.kv_groups = context.num_pruned * self.groups  # that every method removes
        self.readings = readings(context)
        self.planners: dict[str, Planner] = {}  # by method, once they are made
        self._tuned: dict[str, range] = {}  # by baseline, once ranges are tried

    def reading(self, method: str) -> Reading:
        """How a method, or a variant of one, is made."""
        return self.readings.get(method, Reading(method))

    def entry(self, method: str) -> Method | None:
        """The catalogue's entry of a method, or of the method that a variant is of.

        None for the dense model.
        """
        return CATALOGUE.get(self.reading(method).method)

    def size(self, method: str) -> tuple[int, int] | None:
        """Samples of a method's calibration, and tokens of each; None if it needs no sample."""
        entry = self.entry(method)
        if entry is None or not entry.needs_text:
            return None
        return self.context.calibration_size(self.reading(method).method)

    def calibration(self, method: str) -> torch.Tensor | None:
        """Text that a method is calibrated on, ``(samples, tokens)`` int64."""
        size = self.size(method)
        if size is None:
            return None
        reading = self.reading(method)
        return self.context.blocks(self.calibration_corpus, *size, reading.draw, reading.bos)

    def planner(self, method: str) -> Planner:
        """Plans of a baseline for any range, from statistics that are computed once."""
        if method not in self.planners:
            reading = self.reading(method)
            text = self.calibration(method)
            self.planners[method] = planner(
                reading.method, self.context.model, text, **reading.options
            )
        return self.planners[method]

    def layer_ranges(self, method: str) -> list[range]:
        """The layer ranges among which a method is tuned: all of each length, from the bottom."""
        total = self.context.num_layers
        if CATALOGUE[method].one_threshold:
            counts = self.settings["flap_layers"].get(self.context.name) or self._lengths_for_flap()
        else:
            each = None
            if self.context.num_pruned == self.context.profile_depth:  # for which they are set
                each = self.settings["groups_per_layer"].get(self.context.name)
            each = each or self._equal_parts()
            counts = [self.kv_groups // groups for groups in each]
        return [
            range(low, low + count) for count in sorted(counts) for low in range(total - count + 1)
        ]

    def _lengths_for_flap(self) -> list[int]:
        """Lengths from a bit more than a third of the layers to all, as in the paper's tuning."""
        total = self.context.num_layers
        lengths = {round(total * eighths / 8) for eighths in range(3, 9)}
        return [length for length in lengths if length * self.groups >= self.kv_groups]

    def _equal_parts(self) -> list[int]:
        """The two smallest numbers of groups that may go from each layer of a range."""
        numbers = [
            number
            for number in range(1, self.groups + 1)
            if self.kv_groups % number == 0 and self.kv_groups // number <= self.context.num_layers
        ]
        return numbers[:2]

    def inputs(self, method: str) -> dict[str, Any]:
        """What a cell of a method depends on."""
        inputs = {
            **self.context.inputs,
            "context": self.context.longest_window,
            "kv_groups": self.kv_groups,
            "corpus": self.corpus,
        }
        size = self.size(method)
        reading = self.reading(method)
        if size:
            inputs.update(
                calibration=size,
                calibration_split=CALIBRATION,
                seed=self.context.seed + reading.draw,
                source=self.calibration_corpus.source,
                sha256=self.calibration_corpus.sha256,
            )
            if reading.bos:
                inputs.update(self.context.piece_inputs)
        return inputs | reading.options

    # Cells

    @cached_property
    def alphas(self) -> list[float]:
        """The alphas of HARP's search, top-down."""
        return list(searched_alphas(self.context, self.corpus).values())

    def range_cells(self, method: str) -> dict[range, Cell]:
        """A baseline in each layer range, evaluated on the text that alpha is searched on."""
        text = self.searched_text
        cells = {}
        # What lies below a range is run once for all that begin there or higher.
        for layers in sorted(self.layer_ranges(method), key=lambda layers: layers.start):
            inputs = {
                "what": "layer range",
                **self.inputs(method),
                # Mag-sp reads no calibration text, so nothing else tells it from others.
                "method": method,
                "layers": [layers.start, layers.stop],
                "tuning_sha256": text.corpus.sha256,
                "documents": len(text.documents),
            }
            about = {"method": method, **text.about, "start": layers.start, "end": layers.stop}
            cells[layers] = Cell(inputs, partial(self._evaluated, method, layers), about)
        return cells

    @cached_property
    def searched_text(self) -> Text:
        """The text that alpha is searched on, and baselines are tuned on."""
        return self.context.text(self.corpus, SEARCHED)

    def _evaluated(self, method: str, layers: range) -> Result:
        text = self.searched_text
        plan_for = self.planner(method)
        nll = text.nll(plan_for(self.kv_groups, layers))
        return {"rows": document_rows(nll, text.tokens)}

    def tuned_range(self, method: str) -> range | None:
        """The range of a baseline with the lowest perplexity on the text alpha is searched on.

        A variant has the range of its method; None if the method has no range.
        """
        baseline = self.reading(method).method
        if baseline not in BASELINES:
            return None
        if baseline not in self._tuned:
            ranks = {}
            for layers, cell in self.range_cells(baseline).items():
                result = self.context.store.get(cell)
                loss = sum(values_of(result, "nll")) / sum(values_of(result, "tokens"))
                ranks[layers] = (math.isnan(loss), loss, len(layers), layers.start)
            self._tuned[baseline] = min(ranks, key=ranks.get)
        return self._tuned[baseline]

    def plan_cell(self, method: str) -> Cell:
        """The plan of a method or variant."""
        inputs = {"what": "plan", **self.inputs(method), "method": method}
        # Costs of a plan were once counted at this length, and stored cells name it.
        inputs["cost_tokens"] = self.settings["cost_tokens"]
        layers = self.tuned_range(method)
        entry = self.entry(method)
        if layers:
            inputs["layers"] = [layers.start, layers.stop]
        elif entry and entry.takes_alphas:
            inputs["alphas"] = self.alphas
        return Cell(inputs, partial(self._planned, method, layers), {"method": method})

    def _planned(self, method: str, layers: range | None) -> Result:
        """A method's plan, or none where nothing is removed."""
        plan = self._make(method, layers)
        return {
            "plan": plan.to_dict() if plan.layers else None,
            "groups_per_layer": self.groups,
        }

    def _make(self, method: str, layers: range | None) -> PruningPlan:
        """A method's plan, a baseline's for the tuned ``layers``."""
        context = self.context
        entry = self.entry(method)
        if entry is None:  # the dense model
            return PruningPlan(context.num_layers, {})
        if entry.updates_weights:
            return context.refit().plan
        if layers:
            plan_for = self.planner(method)
            return plan_for(self.kv_groups, layers)
        reading = self.reading(method)
        return make_plan(
            reading.method,
            context.model,
            self.calibration(method),
            kv_groups=self.kv_groups,
            alphas=self.alphas,
            **reading.options,
        )

    def plan(self, method: str) -> PruningPlan:
        """A method's plan; the dense model's names no layer."""
        stored = self.context.store.get(self.plan_cell(method))["plan"]
        if stored is None:
            return PruningPlan(self.context.num_layers, {})
        return PruningPlan.from_dict(stored)


def plans(context: Context) -> Iterator[Cell]:
    """The tuned range of every baseline, and the plan of every method."""
    planning = Planning(context)
    yield from plan_cells(planning, (DENSE, *EVALUATED, *planning.readings))


def plan_cells(planning: Planning, methods: Sequence[str]) -> Iterator[Cell]:
    """The ranges that are tried for some methods, and the plans of all."""
    for method in BASELINES:
        if method in methods:
            cells = list(planning.range_cells(method).values())
            yield from behind_bar(f"layer ranges, {method}", cells)
    yield from behind_bar("plans", [planning.plan_cell(method) for method in methods])


def baselines(context: Context) -> Iterator[Cell]:
    """Every plan on the searched text and on held-out texts, document by document."""
    first, second = context.corpora
    planning = Planning(context)
    plans = {method: planning.plan(method) for method in (DENSE, *EVALUATED, *planning.readings)}
    for corpus, split in ((first, SEARCHED), (first, HELD_OUT), (second, HELD_OUT)):
        shown = plans
        if split != HELD_OUT:
            shown = {name: plan for name, plan in plans.items() if name not in planning.readings}
        yield from context.nll_cells(context.text(corpus, split), shown)
