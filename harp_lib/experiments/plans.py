"""Notebook 04: baselines tuned, every method planned at one budget, and each plan evaluated."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import torch

from harp_lib.experiments.job import CALIBRATION, HELD_OUT, SEARCHED, Job
from harp_lib.experiments.texts import document_rows
from harp_lib.methods import make_plan, planner
from harp_lib.methods.calibration import Planner
from harp_lib.names import BASELINES, CATALOGUE, DENSE, EVALUATED, HARP, HARP_FLAP, Method
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import Cell, Result, values_of


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


def readings(job: Job) -> dict[str, Reading]:
    """The other readings that are tried on a model."""
    chosen = dict(OTHER_READINGS)
    if job.pieces_begin_with_bos:
        chosen |= WITHOUT_BOS
    draws = job.profile["baselines"].get("draws", {}).get(job.name, 0)  # beside the first
    for draw, method in product(range(1, 1 + draws), REDRAWN):
        chosen[f"{method}-draw-{draw}"] = Reading(method, draw=draw)
    return chosen


class Setting:
    """How many groups one model loses, from which layer ranges, by which calibration text."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.settings = job.profile["baselines"]
        self.corpus = job.corpora[0]
        self.text = job.corpus(self.corpus)
        self.groups = num_groups(decoder_layers(job.model)[0].self_attn)  # of each layer
        self.kv_groups = job.num_pruned * self.groups  # that every method removes
        self.readings = readings(job)
        self.planners: dict[str, Planner] = {}  # by method, once they are made

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
        return self.job.calibration_size(self.reading(method).method)

    def calibration(self, method: str) -> torch.Tensor | None:
        """Text that a method is calibrated on, ``(samples, tokens)`` int64."""
        size = self.size(method)
        if size is None:
            return None
        reading = self.reading(method)
        return self.job.blocks(self.text, *size, reading.draw, reading.bos)

    def planner(self, method: str) -> Planner:
        """Plans of a baseline for any range, from statistics that are computed once."""
        if method not in self.planners:
            reading = self.reading(method)
            text = self.calibration(method)
            self.planners[method] = planner(reading.method, self.job.model, text, **reading.options)
        return self.planners[method]

    def windows(self, method: str) -> list[range]:
        """The layer ranges among which a method is tuned: all of each length, from the bottom."""
        total = self.job.num_layers
        if CATALOGUE[method].one_threshold:
            counts = self.settings["flap_layers"].get(self.job.name) or self._lengths_for_flap()
        else:
            each = None
            if self.job.depth is None:  # the profile's numbers are for its own depth
                each = self.settings["groups_per_layer"].get(self.job.name)
            each = each or self._equal_parts()
            counts = [self.kv_groups // groups for groups in each]
        return [
            range(low, low + count) for count in sorted(counts) for low in range(total - count + 1)
        ]

    def _lengths_for_flap(self) -> list[int]:
        """Lengths from a bit more than a third of the layers to all, as in the paper's tuning."""
        total = self.job.num_layers
        lengths = {round(total * eighths / 8) for eighths in range(3, 9)}
        return [length for length in lengths if length * self.groups >= self.kv_groups]

    def _equal_parts(self) -> list[int]:
        """The two smallest numbers of groups that may go from each layer of a range."""
        numbers = [
            number
            for number in range(1, self.groups + 1)
            if self.kv_groups % number == 0 and self.kv_groups // number <= self.job.num_layers
        ]
        return numbers[:2]

    def inputs(self, method: str) -> dict[str, Any]:
        """What a cell of a method depends on."""
        inputs = {
            **self.job.inputs,
            "context": self.job.context,
            "kv_groups": self.kv_groups,
            "corpus": self.corpus,
        }
        size = self.size(method)
        reading = self.reading(method)
        if size:
            inputs.update(
                calibration=size,
                calibration_split=CALIBRATION,
                seed=self.job.seed + reading.draw,
                source=self.text.source,
                sha256=self.text.sha256,
            )
            if reading.bos:
                inputs.update(self.job.piece_inputs)
        return inputs | reading.options


def plans(job: Job) -> None:
    """The tuned range of every baseline, and the plan of every method."""
    setting = Setting(job)
    make_plans(setting, (DENSE, *EVALUATED, *setting.readings))


def make_plans(setting: Setting, methods: Sequence[str]) -> None:
    """The plans of some methods and variants, and the tuned ranges of those that have one."""
    job = setting.job
    tuned = _tune(setting, methods)
    alphas = list(job.alphas(setting.corpus).values())  # top-down
    cells = []
    for method in methods:
        # Costs of a plan were once counted at this length, and stored cells name it.
        inputs = setting.inputs(method) | {"cost_tokens": setting.settings["cost_tokens"]}
        layers = tuned.get(method)
        entry = setting.entry(method)
        if layers:
            inputs["layers"] = [layers.start, layers.stop]
        elif entry and entry.takes_alphas:
            inputs["alphas"] = alphas
        compute = partial(_planned, setting, method, layers, alphas)
        cells.append(Cell(method, "plan", inputs, compute))
    job.results("plans", cells)


def _tune(setting: Setting, methods: Sequence[str]) -> dict[str, range]:
    """The range of each baseline with the lowest perplexity on the text alpha is searched on.

    A variant has the range of its method.
    """
    job = setting.job
    text = job.text(setting.corpus, SEARCHED)
    baselines = [method for method in BASELINES if method in methods]
    work = [(method, window) for method in baselines for window in setting.windows(method)]
    work.sort(key=lambda pair: pair[1].start)  # what lies below is run once

    def evaluate(method: str, window: range) -> Result:
        plan_for = setting.planner(method)
        nll = text.nll(plan_for(setting.kv_groups, window))
        return {"rows": document_rows(nll, text.tokens)}

    cells = []
    for method, window in work:
        inputs = {
            **setting.inputs(method),
            "layers": [window.start, window.stop],
            "tuning_sha256": text.corpus.sha256,
            "documents": len(text.documents),
        }
        cells.append(
            Cell(
                method,
                f"range-{window.start:02d}-{window.stop:02d}",
                inputs,
                partial(evaluate, method, window),
                text.coordinates | {"start": window.start, "end": window.stop},
            )
        )
    ranks: dict[str, dict[range, tuple]] = {method: {} for method in baselines}
    results = job.results("layer ranges", cells)
    for (method, window), result in zip(work, results, strict=True):
        loss = sum(values_of(result, "nll")) / sum(values_of(result, "tokens"))
        ranks[method][window] = (math.isnan(loss), loss, len(window), window.start)
    best = {method: min(of_method, key=of_method.get) for method, of_method in ranks.items()}
    for variant, reading in setting.readings.items():
        if reading.method in best:
            best[variant] = best[reading.method]
    return best


def _planned(setting: Setting, method: str, layers: range | None, alphas: list[float]) -> Result:
    """A method's plan, or none where nothing is removed."""
    plan = _plan(setting, method, layers, alphas)
    return {
        "plan": plan.to_dict() if plan.layers else None,
        "groups_per_layer": setting.groups,
    }


def _plan(setting: Setting, method: str, layers: range | None, alphas: list[float]) -> PruningPlan:
    """A method's plan, a baseline's for the tuned ``layers``."""
    job = setting.job
    entry = setting.entry(method)
    if entry is None:  # the dense model
        return PruningPlan(job.num_layers, {})
    if entry.updates_weights:
        return job.refit().plan
    if layers:
        plan_for = setting.planner(method)
        return plan_for(setting.kv_groups, layers)
    reading = setting.reading(method)
    return make_plan(
        reading.method,
        job.model,
        setting.calibration(method),
        kv_groups=setting.kv_groups,
        alphas=alphas,
        **reading.options,
    )


def by_lowest_layer(plans: Mapping[str, PruningPlan]) -> list[str]:
    """Methods in the order in which :meth:`Text.nll` is quick: plans that begin low come first."""
    lowest = {method: min(plan.layers, default=plan.num_layers) for method, plan in plans.items()}
    return sorted(plans, key=lowest.get)


def baselines(job: Job) -> None:
    """Every plan on the searched text and on held-out texts, document by document."""
    first, second = job.corpora
    others = readings(job)
    plans = {method: job.plan(method) for method in (DENSE, *EVALUATED, *others)}
    lowest_first = by_lowest_layer(plans)
    in_notebook_03 = {DENSE: DENSE, HARP: f"searched-on-{first}"}
    for corpus, split in ((first, SEARCHED), (first, HELD_OUT), (second, HELD_OUT)):
        text = job.text(corpus, split)
        cells = []
        for method in lowest_first:
            if method in others and split != HELD_OUT:
                continue
            plan = plans[method]
            inputs = {
                **text.inputs,
                **job.plan_inputs(plan),
                "documents": len(text.documents),
            }
            cell = text.nll_cell(method, inputs, plan)
            if method in in_notebook_03:
                read = partial(job.read, "alpha_search", in_notebook_03[method], cell.name)
                cell = replace(cell, compute=read)
            cells.append(cell)
        job.results(f"perplexities, {corpus}", cells)
