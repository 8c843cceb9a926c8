"""Notebooks 03 and 04: alpha searched, baselines tuned, every method planned at one budget,
evaluated and counted.
"""

import functools
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harp_lib import accounting
from harp_lib.experiments.job import CALIBRATION, HELD_OUT, SEARCHED, Job, Text
from harp_lib.methods import make_plan, planner
from harp_lib.methods.alpha_search import search_alphas
from harp_lib.names import BASELINES, CATALOGUE, EVALUATED, Method
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import PruningPlan

OTHER_READINGS = {
    "flap-squared": ("flap", {"squared": True}),
    "harp+flap-even": ("harp+flap", {"evenly": True}),
}
"""Methods with other options.

Upstream squares FLAP's scores of W_O once more than the paper prints. HARP+FLAP with as many FFN
channels from each layer is a control: it tells what the rule costs by which FLAP chooses channels.
"""
RESAMPLED = "harp-resampled"  # HARP, with alpha searched on a second sample of the same corpus
CALIBRATION_SIZE = (
    128,
    128,
)  # samples, tokens of each, of a baseline that the profile does not name


def entry_of(method: str) -> Method | None:
    """What the catalogue says of a method or of the method that a variant is of; None for the dense
    model.
    """
    name, _ = OTHER_READINGS.get(method, (method, {}))
    return CATALOGUE.get(name)


def search(job: Job) -> None:
    """Algorithm 1 on each corpus: alphas, perplexity of every candidate, seconds and layer passes.

    Where documents are left, the search is run again on a second sample of the same corpus. What
    that changes is the noise against which an alpha of another corpus has to be seen.
    """
    for corpus in job.corpora:
        _searched(job, "harp", corpus, job.text(corpus, SEARCHED))
        second = job.second_sample(corpus)
        if second is not None:
            _searched(job, RESAMPLED, corpus, second)


def _searched(job: Job, method: str, corpus: str, text: Text) -> dict[str, Any]:
    """One search, which goes on where it was interrupted."""
    cache = job.profile["alpha_search"]["cache_device"]

    def compute(kept: Path) -> dict[str, Any]:
        found = search_alphas(
            job.model, text.windows, job.num_pruned, resume=kept, cache_device=cache
        )
        return vars(found) | {"tokens": sum(text.tokens)}

    inputs = text.inputs | {"num_layers": job.num_pruned}
    return job.store_of(job.store).cell(job.name, method, f"search-{corpus}", inputs, compute)


def alpha(job: Job) -> None:
    """Dense, alpha = 1, alpha = 0 and each searched alpha on every text, document by document.

    The alpha of a second sample is evaluated on held-out text of its own corpus.
    """
    searched = {f"searched-on-{corpus}": job.alphas(corpus) for corpus in job.corpora}
    ones, zeros = (dict.fromkeys(job.alphas(job.corpora[0]), alpha) for alpha in (1.0, 0.0))
    for corpus, split in itertools.product(job.corpora, (SEARCHED, HELD_OUT)):
        text = job.text(corpus, split)  # one text at a time in memory
        plans = {"alpha-1": ones, "alpha-0": zeros, **searched}
        if split == HELD_OUT and job.second_sample(corpus) is not None:
            plans[f"resampled-on-{corpus}"] = job.alphas(corpus, RESAMPLED)
        cells = []
        for method, alphas in {**plans, "dense": {}}.items():
            plan = PruningPlan.value_only(job.num_layers, alphas)
            cells.append(
                (method, f"{corpus}-{split}", text.inputs | {"alphas": alphas}, text.nll, plan)
            )
        job.cells(f"perplexities, {corpus}", cells)


class Setting:
    """What is removed from one model, from where it may be, and what that is decided on."""

    def __init__(self, job: Job) -> None:
        self.job, self.settings, self.corpus = job, job.profile["baselines"], job.corpora[0]
        self.groups = num_groups(decoder_layers(job.model)[0].self_attn)
        self.kv_groups, self.text = job.num_pruned * self.groups, job.corpus(self.corpus)
        self.planner = functools.cache(self._planner)

    def size(self, method: str) -> tuple[int, int] | None:
        """Samples of a method's calibration, and tokens of each; None if its plan depends on no
        sample.
        """
        about = entry_of(method)
        if about is None or not about.needs_text:
            return None
        name, _ = OTHER_READINGS.get(method, (method, {}))
        return self.settings["calibration"].get(name, CALIBRATION_SIZE)

    def calibration(self, method: str) -> torch.Tensor | None:
        """Tokens (samples, tokens of each) that a method is calibrated on."""
        size = self.size(method)
        return size and self.job.blocks(self.text, *size)

    def _planner(self, method: str) -> tuple[Callable[[int, range], PruningPlan], float]:
        """Plans of a baseline for any range, from statistics that are computed once; the seconds
        these took.
        """
        begin = time.perf_counter()
        name, options = OTHER_READINGS.get(method, (method, {}))
        plan_for = planner(name, self.job.model, self.calibration(method), **options)
        return plan_for, time.perf_counter() - begin

    def windows(self, method: str) -> list[range]:
        """The layer ranges among which a method is tuned: all of each length, from the bottom up."""
        total, name = self.job.num_layers, self.job.name
        if CATALOGUE[method].one_threshold:
            # From a bit more than a third of the layers to all, as the paper tunes FLAP on
            # LLaMA3.1-8B.
            steps = {round(total * eighths / 8) for eighths in range(3, 9)}
            able = [count for count in steps if count * self.groups >= self.kv_groups]
            counts = self.settings["flap_layers"].get(name) or able
        else:  # equally many groups from each layer, the two smallest numbers
            each = [
                n
                for n in range(1, self.groups + 1)
                if self.kv_groups % n == 0 and self.kv_groups // n <= total
            ]
            counts = [
                self.kv_groups // n for n in self.settings["groups_per_layer"].get(name) or each[:2]
            ]
        return [
            range(low, low + count) for count in sorted(counts) for low in range(total - count + 1)
        ]

    def inputs(self, method: str) -> dict[str, Any]:
        inputs = self.job.inputs | {
            "context": self.job.context,
            "kv_groups": self.kv_groups,
            "corpus": self.corpus,
        }
        if size := self.size(method):
            inputs |= {"calibration": size, "calibration_split": CALIBRATION, "seed": self.job.seed}
            inputs |= {"source": self.text.source, "sha256": self.text.sha256}
        _, options = OTHER_READINGS.get(method, (method, {}))
        return inputs | options


def plans(job: Job) -> None:
    """The tuned range of every baseline, and the plan of every method with what it costs."""
    setting, cells = Setting(job), []
    tuned, found = _tune(job, setting), job.read("alpha_search", "harp", f"search-{setting.corpus}")
    for method in ("dense", *EVALUATED, *OTHER_READINGS):
        inputs = setting.inputs(method) | {"cost_tokens": setting.settings["cost_tokens"]}
        layers, about = tuned.get(method), entry_of(method)
        if layers:
            inputs["layers"] = [layers.start, layers.stop]
        elif about and about.takes_alphas:
            inputs["alphas"] = found["alphas"]
        cells.append((method, "plan", inputs, _planned, setting, method, layers, found))
    job.cells("plans", cells)


def _tune(job: Job, setting: Setting) -> dict[str, range]:
    """Each baseline's perplexity with every range, on the text that alpha is searched on; the best
    range.
    """
    text, cells = job.text(setting.corpus, SEARCHED), []
    work = [(method, window) for method in BASELINES for window in setting.windows(method)]
    work.sort(key=lambda pair: pair[1].start)  # what lies below is run once

    def evaluate(method: str, window: range) -> dict[str, Any]:
        return text.nll(setting.planner(method)[0](setting.kv_groups, window))

    for method, window in work:
        inputs = setting.inputs(method) | {"layers": [window.start, window.stop]}
        inputs |= {"tuning_sha256": text.corpus.sha256, "documents": len(text.documents)}
        cells.append(
            (
                method,
                f"range-{window.start:02d}-{window.stop:02d}",
                inputs,
                evaluate,
                method,
                window,
            )
        )
    ranks: dict[str, dict[range, tuple]] = {method: {} for method in BASELINES}
    for (method, window), found in zip(work, job.cells("layer ranges", cells), strict=True):
        loss = sum(found["nll"]) / sum(found["tokens"])
        ranks[method][window] = (math.isnan(loss), loss, len(window), window.start)
    best = {method: min(of, key=of.get) for method, of in ranks.items()}
    return best | {
        variant: best[method] for variant, (method, _) in OTHER_READINGS.items() if method in best
    }


def _planned(
    setting: Setting, method: str, layers: range | None, search: dict[str, Any]
) -> dict[str, Any]:
    """A method's plan, a baseline's for the tuned ``layers``, and what it costs: to find, and to
    run.
    """
    job, kv_groups, about = setting.job, setting.kv_groups, entry_of(method)
    folded = about is not None and about.updates_weights
    if about is None:  # the dense model
        plan, seconds = PruningPlan(job.num_layers, {}), 0.0
    elif about.updates_weights:
        refit = job.refit()
        plan, seconds = refit.plan, refit.seconds
    elif layers:
        plan_for, before = setting.planner(method)
        begin = time.perf_counter()
        plan, seconds = plan_for(kv_groups, layers), before + time.perf_counter() - begin
    else:
        begin, calibration = time.perf_counter(), setting.calibration(method)
        name, options = OTHER_READINGS.get(method, (method, {}))
        plan = make_plan(
            name, job.model, calibration, kv_groups=kv_groups, alphas=search["alphas"], **options
        )
        seconds = search["seconds"] + time.perf_counter() - begin
    config, tokens = job.model.config, setting.settings["cost_tokens"]
    result = {
        "plan": plan.to_dict() if plan.layers else None,
        "calibration_tokens": math.prod(setting.size(method) or (0,)),
        "seconds": seconds,
        "searched_tokens": search["tokens"] if about and about.takes_alphas else 0,
        "parameters": accounting.parameters(config, plan, folded),
        "removed_fraction": accounting.removed_fraction(config, plan),
        "head_ratio": accounting.head_ratio(config, plan),
        "kv_bytes_per_token": accounting.kv_bytes_per_token(config, plan, job.model.dtype),
        "prefill_flops": accounting.prefill_flops(
            config, plan, tokens, causal=True, fold_output=folded
        ),
        "decode_flops": accounting.decode_flops(config, plan, tokens, folded),
        "tokens": tokens,
        "groups_per_layer": setting.groups,
        "ffn_channels": config.intermediate_size,
    }
    if method in OTHER_READINGS and layers:
        printed, _ = OTHER_READINGS[method]
        result |= _difference(job.plan(printed), plan)
    return result


def _difference(printed: PruningPlan, squared: PruningPlan) -> dict[str, Any]:
    """Key/value groups that one reading of FLAP removes and the other does not, as pairs of layer
    and group.
    """
    first, second = (
        {(layer, group) for layer, lost in plan.layers.items() for group in lost.removed_groups}
        for plan in (printed, squared)
    )
    return {
        "same": len(first & second),
        "only_printed": sorted(first - second),
        "only_squared": sorted(second - first),
    }


def baselines(job: Job) -> None:
    """Every plan on the searched text and on held-out texts, document by document."""
    first, second = job.corpora
    plans = {method: job.plan(method) for method in ("dense", *EVALUATED, *OTHER_READINGS)}
    lowest_first = sorted(
        plans, key=lambda method: min(plans[method].layers, default=job.num_layers)
    )
    known = {"dense": "dense", "harp": f"searched-on-{first}"}  # computed for notebook 03
    for corpus, split in ((first, SEARCHED), (first, HELD_OUT), (second, HELD_OUT)):
        text, task, cells = job.text(corpus, split), f"{corpus}-{split}", []
        for method in lowest_first:
            inputs = (
                text.inputs | job.plan_inputs(plans[method]) | {"documents": len(text.documents)}
            )
            found = (
                (job.read, "alpha_search", known[method], task)
                if method in known
                else (text.nll, plans[method])
            )
            if method not in OTHER_READINGS or split == HELD_OUT:
                cells.append((method, task, inputs, *found))
        job.cells(f"perplexities, {corpus}", cells)
