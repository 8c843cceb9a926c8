"""Notebook 04: baselines tuned, every method planned at one budget, and each plan evaluated."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from harp_lib.experiments.job import CALIBRATION, HELD_OUT, SEARCHED, Job
from harp_lib.experiments.texts import document_rows
from harp_lib.methods import make_plan, planner
from harp_lib.methods.calibration import Planner
from harp_lib.names import BASELINES, CATALOGUE, DENSE, EVALUATED, HARP, Method
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import Cell, Result, values_of

OTHER_READINGS = {
    "flap-squared": ("flap", {"squared": True}),
    "harp+flap-even": ("harp+flap", {"evenly": True}),
}
"""Methods with other options.

Upstream squares FLAP's scores of W_O once more than the paper prints. HARP+FLAP with as many FFN
channels from each layer is a control: it tells what the rule costs by which FLAP chooses channels.
"""


def reading_of(method: str) -> tuple[str, dict[str, bool]]:
    """The name by which :func:`make_plan` knows a method or a variant, and its options."""
    return OTHER_READINGS.get(method, (method, {}))


def entry_of(method: str) -> Method | None:
    """The catalogue's entry of a method, or of the method that a variant is of.

    None for the dense model.
    """
    name, _ = reading_of(method)
    return CATALOGUE.get(name)


class Setting:
    """How many groups one model loses, from which layer ranges, by which calibration text."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.settings = job.profile["baselines"]
        self.corpus = job.corpora[0]
        self.text = job.corpus(self.corpus)
        self.groups = num_groups(decoder_layers(job.model)[0].self_attn)  # of each layer
        self.kv_groups = job.num_pruned * self.groups  # that every method removes
        self.planners: dict[str, Planner] = {}  # by method, once they are made

    def size(self, method: str) -> tuple[int, int] | None:
        """Samples of a method's calibration, and tokens of each; None if it needs no sample."""
        entry = entry_of(method)
        if entry is None or not entry.needs_text:
            return None
        name, _ = reading_of(method)
        return self.job.calibration_size(name)

    def calibration(self, method: str) -> torch.Tensor | None:
        """Text that a method is calibrated on, ``(samples, tokens)`` int64."""
        size = self.size(method)
        return self.job.blocks(self.text, *size) if size else None

    def planner(self, method: str) -> Planner:
        """Plans of a baseline for any range, from statistics that are computed once."""
        if method not in self.planners:
            name, options = reading_of(method)
            text = self.calibration(method)
            self.planners[method] = planner(name, self.job.model, text, **options)
        return self.planners[method]

    def windows(self, method: str) -> list[range]:
        """The layer ranges among which a method is tuned: all of each length, from the bottom."""
        total = self.job.num_layers
        if CATALOGUE[method].one_threshold:
            counts = self.settings["flap_layers"].get(self.job.name) or self._lengths_for_flap()
        else:
            each = self.settings["groups_per_layer"].get(self.job.name) or self._equal_parts()
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
        if size:
            inputs.update(
                calibration=size,
                calibration_split=CALIBRATION,
                seed=self.job.seed,
                source=self.text.source,
                sha256=self.text.sha256,
            )
        _, options = reading_of(method)
        return inputs | options


def plans(job: Job) -> None:
    """The tuned range of every baseline, and the plan of every method."""
    setting = Setting(job)
    tuned = _tune(job, setting)
    alphas = list(job.alphas(setting.corpus).values())  # top-down
    cells = []
    for method in (DENSE, *EVALUATED, *OTHER_READINGS):
        # Costs of a plan were once counted at this length, and stored cells name it.
        inputs = setting.inputs(method) | {"cost_tokens": setting.settings["cost_tokens"]}
        layers = tuned.get(method)
        entry = entry_of(method)
        if layers:
            inputs["layers"] = [layers.start, layers.stop]
        elif entry and entry.takes_alphas:
            inputs["alphas"] = alphas
        compute = partial(_planned, setting, method, layers, alphas)
        cells.append(Cell(method, "plan", inputs, compute))
    job.results("plans", cells)


def _tune(job: Job, setting: Setting) -> dict[str, range]:
    """The range of each baseline with the lowest perplexity on the text alpha is searched on."""
    text = job.text(setting.corpus, SEARCHED)
    work = [(method, window) for method in BASELINES for window in setting.windows(method)]
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
    ranks: dict[str, dict[range, tuple]] = {method: {} for method in BASELINES}
    results = job.results("layer ranges", cells)
    for (method, window), result in zip(work, results, strict=True):
        loss = sum(values_of(result, "nll")) / sum(values_of(result, "tokens"))
        ranks[method][window] = (math.isnan(loss), loss, len(window), window.start)
    best = {method: min(of_method, key=of_method.get) for method, of_method in ranks.items()}
    for variant, (method, _) in OTHER_READINGS.items():
        if method in best:
            best[variant] = best[method]
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
    entry = entry_of(method)
    if entry is None:  # the dense model
        return PruningPlan(job.num_layers, {})
    if entry.updates_weights:
        return job.refit().plan
    if layers:
        plan_for = setting.planner(method)
        return plan_for(setting.kv_groups, layers)
    name, options = reading_of(method)
    return make_plan(
        name,
        job.model,
        setting.calibration(method),
        kv_groups=setting.kv_groups,
        alphas=alphas,
        **options,
    )


def baselines(job: Job) -> None:
    """Every plan on the searched text and on held-out texts, document by document."""
    first, second = job.corpora
    plans = {method: job.plan(method) for method in (DENSE, *EVALUATED, *OTHER_READINGS)}
    lowest_first = sorted(
        plans, key=lambda method: min(plans[method].layers, default=job.num_layers)
    )
    in_notebook_03 = {DENSE: DENSE, HARP: f"searched-on-{first}"}
    for corpus, split in ((first, SEARCHED), (first, HELD_OUT), (second, HELD_OUT)):
        text = job.text(corpus, split)
        cells = []
        for method in lowest_first:
            if method in OTHER_READINGS and split != HELD_OUT:
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
