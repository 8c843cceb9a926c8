"""Notebook 04: every baseline's layer range tuned, all methods planned at one budget, evaluated and counted."""

import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tqdm import tqdm

from harp_lib import accounting
from harp_lib.experiments.job import CALIBRATED, CALIBRATION, HELD_OUT, REFIT, SEARCHED, Job, Text, described
from harp_lib.measure.text import calibration_blocks, load_corpus
from harp_lib.methods import BASELINES, EVALUATED, make_plan, planner
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.plan import PruningPlan

SQUARED = "flap-squared"  # FLAP as upstream has it: the scores of W_O are squared once more than the paper prints
CALIBRATION_SIZE = (128, 128)  # samples, tokens of each, of a baseline that the profile does not name


class Setting:
    """What is removed from one model, from where it may be, and what that is decided on."""

    def __init__(self, job: Job) -> None:
        self.job, self.settings, self.corpus = job, job.profile["baselines"], job.corpora[0]
        self.num_layers, self.groups = job.num_layers, num_groups(decoder_layers(job.model)[0].self_attn)
        self.kv_groups = job.num_pruned * self.groups
        self.text = load_corpus(self.corpus, CALIBRATION, job.profile["datasets"])
        self.planner = functools.cache(self._planner)

    def size(self, method: str) -> tuple[int, int] | None:
        """Samples of a method's calibration, and tokens of each; None where it needs none."""
        method = method.removesuffix("-squared")
        return self.settings["calibration"].get(method, CALIBRATION_SIZE) if method in (*CALIBRATED, REFIT) else None

    def calibration(self, method: str) -> torch.Tensor | None:
        """Tokens (samples, tokens of each) that a method is calibrated on."""
        size = self.size(method)
        return size and calibration_blocks(self.text, self.job.tokenizer, *size, seed=self.job.seed)

    def _planner(self, method: str) -> tuple[Callable[[int, range], PruningPlan], float]:
        """Plans of a baseline for any range, from statistics that are computed once; the seconds these took."""
        begin, options = time.perf_counter(), {"squared": True} if method == SQUARED else {}
        calibration = self.calibration(method)
        found = planner(method.removesuffix("-squared"), self.job.model, calibration, **options)
        return found, time.perf_counter() - begin

    def windows(self, method: str) -> list[range]:
        """The layer ranges among which a method is tuned: all of each length, from the bottom up."""
        shape = (self.num_layers, self.groups, self.kv_groups)
        if method == "flap":
            counts = self.settings["flap_layers"].get(self.job.name) or flap_counts(*shape)
        else:
            parts = self.settings["groups_per_layer"].get(self.job.name) or uniform_parts(*shape)
            counts = [self.kv_groups // each for each in parts]
        return [range(low, low + count) for count in sorted(counts) for low in range(self.num_layers - count + 1)]

    def inputs(self, method: str) -> dict[str, Any]:
        inputs = self.job.inputs | {"context": self.job.context, "kv_groups": self.kv_groups, "corpus": self.corpus}
        if (size := self.size(method)) is not None:
            source = {key: value for key, value in described(self.text).items() if key in ("source", "sha256")}
            inputs |= {"calibration": size, "calibration_split": CALIBRATION, "seed": self.job.seed, **source}
        if method == SQUARED:
            inputs["squared"] = True
        return inputs


def uniform_parts(num_layers: int, groups_per_layer: int, kv_groups: int) -> list[int]:
    """The two smallest numbers of groups that every layer of some range can lose to lose ``kv_groups`` in all."""
    parts = range(1, groups_per_layer + 1)
    return [each for each in parts if kv_groups % each == 0 and kv_groups // each <= num_layers][:2]


def flap_counts(num_layers: int, groups_per_layer: int, kv_groups: int) -> list[int]:
    """From a bit more than a third of the layers to all, in six steps, as the paper tunes LLaMA3.1-8B (12 to 32)."""
    counts = {round(num_layers * eighths / 8) for eighths in range(3, 9)}
    return sorted(count for count in counts if count * groups_per_layer >= kv_groups)


def plans(job: Job) -> None:
    """The tuned range of every baseline, and the plan of every method with what it costs."""
    setting = Setting(job)
    ranges = _tune(job, setting)
    search = job.read("alpha_search", "harp", f"search-{setting.corpus}")
    tokens = setting.settings["cost_tokens"]

    def make(method: str) -> tuple[PruningPlan | None, float]:
        if method == "dense":
            return None, 0.0
        if method == REFIT:
            found = job.refit()
            return found.plan, found.seconds
        if method in ranges:
            plan_for, before = setting.planner(method)
            begin = time.perf_counter()
            return plan_for(setting.kv_groups, ranges[method]), before + time.perf_counter() - begin
        begin, calibration = time.perf_counter(), setting.calibration(method)
        options = {"kv_groups": setting.kv_groups, "alphas": search["alphas"]}
        plan = make_plan(method, job.model, calibration, **options)
        return plan, search["seconds"] + time.perf_counter() - begin

    for method in tqdm(("dense", *EVALUATED, SQUARED), desc="plans", unit="plan"):

        def compute(method=method) -> dict[str, Any]:
            plan, seconds = make(method)
            samples, length = setting.size(method) or (0, 0)
            read = {"calibration_tokens": samples * length, "seconds": seconds}
            read["searched_tokens"] = search["tokens"] if method in ("harp", "harp+flap") else 0
            other = _difference(job.plan("flap"), plan) if method == SQUARED else {}
            return {"plan": plan and plan.to_dict(), **read, **_costs(job, setting, plan, tokens), **other}

        inputs = setting.inputs(method) | {"cost_tokens": tokens}
        if method in ranges:
            inputs["layers"] = [ranges[method].start, ranges[method].stop]
        elif method in ("harp", "harp+flap"):
            inputs["alphas"] = search["alphas"]
        job.cell(method, "plan", inputs, compute)


def _tune(job: Job, setting: Setting) -> dict[str, range]:
    """Each baseline's perplexity with every range, on the text that alpha is searched on; the best range."""
    text = job.text(setting.corpus, SEARCHED)
    work = [(method, window) for method in BASELINES for window in setting.windows(method)]
    work.sort(key=lambda pair: pair[1].start)  # what lies below is run once
    found: dict[str, dict[range, float]] = {method: {} for method in BASELINES}
    for method, window in tqdm(work, desc="layer ranges", unit="range"):

        def compute(method=method, window=window) -> dict[str, Any]:
            return text.nll(setting.planner(method)[0](setting.kv_groups, window))

        inputs = setting.inputs(method) | {"layers": [window.start, window.stop]}
        inputs |= {"tuning_sha256": text.corpus.sha256, "documents": len(text.documents)}
        result = job.cell(method, f"range-{window.start:02d}-{window.stop:02d}", inputs, compute)
        found[method][window] = sum(result["nll"]) / sum(result["tokens"])

    def best(losses: Mapping[range, float]) -> range:
        return min(losses, key=lambda window: (math.isnan(losses[window]), losses[window], len(window), window.start))

    ranges = {method: best(losses) for method, losses in found.items()}
    return ranges | {SQUARED: ranges["flap"]}


def _difference(printed: PruningPlan, squared: PruningPlan) -> dict[str, Any]:
    """Key/value groups that one reading of FLAP removes and the other does not, as pairs of layer and group."""
    first, second = (
        {(layer, group) for layer, lost in plan.layers.items() for group in lost.removed_groups}
        for plan in (printed, squared)
    )
    return {"same": len(first & second), "only_printed": sorted(first - second), "only_squared": sorted(second - first)}


def _costs(job: Job, setting: Setting, plan: PruningPlan | None, tokens: int) -> dict[str, Any]:
    """Parameters, bytes of cache and floating-point operations of the model under ``plan``, counted."""
    config = job.model.config
    nothing = plan or PruningPlan(setting.num_layers, {})
    folded = nothing.method == REFIT
    return {
        "parameters": accounting.parameters(config, plan, folded),
        "removed_fraction": accounting.removed_fraction(config, nothing),
        "head_ratio": accounting.head_ratio(config, nothing),
        "kv_bytes_per_token": accounting.kv_bytes_per_token(config, plan, job.model.dtype),
        "prefill_flops": accounting.prefill_flops(config, plan, tokens, causal=True, fold_output=folded),
        "decode_flops": accounting.decode_flops(config, plan, tokens, folded),
        "tokens": tokens,
        "groups_per_layer": setting.groups,
        "ffn_channels": config.intermediate_size,
    }


def baselines(job: Job) -> None:
    """Every plan on the searched text and on held-out texts, document by document."""
    first = job.corpora[0]
    main = {method: job.plan(method) for method in ("dense", *EVALUATED)}
    _evaluate(job, job.text(first, SEARCHED), main)
    _evaluate(job, job.text(first, HELD_OUT), main | {SQUARED: job.plan(SQUARED)})
    _evaluate(job, job.text(job.corpora[1], HELD_OUT), main)


def _evaluate(job: Job, text: Text, plans: Mapping[str, PruningPlan | None]) -> None:
    """Negative log-likelihood of each document under each plan."""
    known = {"dense": "dense", "harp": f"searched-on-{job.corpora[0]}"}  # computed for notebook 03
    lowest_first = sorted(plans.items(), key=lambda item: min(item[1].layers) if item[1] else job.num_layers)
    for method, plan in tqdm(lowest_first, desc="perplexities", unit="plan"):
        task = f"{text.corpus.name}-{text.corpus.split}"

        def compute(method=method, plan=plan, task=task) -> dict[str, Any]:
            if method in known:
                found = job.read("alpha_search", known[method], task)
                return {"nll": found["nll"], "tokens": found["tokens"]}
            return text.nll(plan)

        inputs = text.inputs | job.plan_inputs(plan) | {"documents": len(text.documents)}
        job.cell(method, task, inputs, compute)
