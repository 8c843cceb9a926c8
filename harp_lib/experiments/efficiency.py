"""Notebook 08: time and memory of a dense model and of its pruned variants, measured in turn."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import psutil
import torch
from tqdm import tqdm
from transformers import PreTrainedConfig, PreTrainedModel

from harp_lib import config as paths
from harp_lib.accounting import (
    count_groups,
    paper_configs,
    parameters,
    prefill_flops,
    prefill_layers,
)
from harp_lib.circumstances import device_name
from harp_lib.evaluation import timing
from harp_lib.evaluation.llama_cpp import LlamaCpp
from harp_lib.experiments.job import Job, or_failed
from harp_lib.models.load import random_model
from harp_lib.prefix_lm.cache import continued
from harp_lib.pruning import remote, surgery
from harp_lib.pruning.architecture import check_plan, decoder_layers
from harp_lib.pruning.layers import repeats_values
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.results import Cell, Result

DENSE = "dense"
PLAIN_HARP = "harp"
TAIL = "harp-tail"
FOLDED = "harp-folded"
THINNED = "thinned"
TIMED = {
    "prefill": (DENSE, PLAIN_HARP, TAIL, FOLDED, THINNED),
    "decode": (DENSE, PLAIN_HARP, FOLDED, THINNED),  # TAIL decodes as PLAIN_HARP does
    "split": (DENSE, PLAIN_HARP),
    "llama_cpp": (DENSE, PLAIN_HARP),
}
"""The variants that are timed, by the kind of measurement."""
PAIRS = {"full": False, "causal": True}
"""Query-key pairs that are counted: all, or those that are visible."""
POINTS = 33  # of each counted curve
# How often all keys and values move for each new token: read and written for a longer copy, and
# read by attention.
CACHE_MOVES = 3

# Memory of all variants of a model in its weights: groups are sliced out of a copy.
MEMORY_OF_VARIANTS = 1.2

Measurement = tuple[str, int, int]  # kind, tokens and repetitions
Models = dict[str, PreTrainedModel]  # by the name of a variant
Row = dict[str, Any]


class Variant(NamedTuple):
    """A model that is ready to be timed, and how it was pruned; no plan: dense."""

    model: PreTrainedModel
    plan: PruningPlan | None = None
    fold_output: bool = False
    tail_only: bool = False  # a prefill sends its last position alone through the top layers


def make_variants(model: PreTrainedModel, plan: PruningPlan) -> dict[str, Variant]:
    """The dense model, HARP's plan carried out in three ways, and as many groups taken evenly.

    All share the weights of ``model``: what a variant has of its own are sliced and folded
    projections. Alpha is left out. In a pruned model it is in the weights and takes no time; only
    where it is 0 does the rest of the attention go too, and that it does here. A variant that a
    model cannot have is left out.
    """
    plans = {PLAIN_HARP: plan, TAIL: plan}
    layers = decoder_layers(model)
    if any(
        alpha and repeats_values(layers[layer].self_attn) for layer, alpha in plan.alphas.items()
    ):
        plans[FOLDED] = plan
    thinned = thinned_plan(model.config, plan)
    with suppress(ValueError):  # as of a norm over all heads
        check_plan(model, thinned)
        plans[THINNED] = thinned
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    variants = {DENSE: Variant(model)}
    for name, variant_plan in plans.items():
        twin = copy.deepcopy(model, dict(shared))
        surgery.swap_modules(twin, variant_plan, fold_output=name == FOLDED)
        if name == TAIL:
            # The forward pass of a saved checkpoint; the other variants run every position.
            twin.__class__ = remote.pruned_class(type(twin))
        variants[name] = Variant(twin, variant_plan, name == FOLDED, name == TAIL)
    return variants


def thinned_plan(config: PreTrainedConfig, plan: PruningPlan) -> PruningPlan:
    """The plan that takes as many groups as ``plan``, as evenly as whole groups allow."""
    total, kept = np.array(count_groups(config, plan)).T  # of each layer
    # Groups that are gone from the bottom up to the top of each layer.
    gone = total.cumsum() * (total - kept).sum() // total.sum()
    layers = {}
    for layer, count in enumerate(np.diff(gone, prepend=0).tolist()):
        if count:
            layers[layer] = LayerPlan(removed_groups=tuple(range(count)))
    return PruningPlan(plan.num_layers, layers, THINNED)


def random_shape(
    name: str, layers: int, dtype: str, seed: int
) -> tuple[PreTrainedModel, PruningPlan]:
    """A model of the paper with random weights, and HARP's plan of the published alphas.

    No time depends on the weights. It has the first ``layers`` of the model's layers. If these are
    not all, HARP prunes the same share of them.
    """
    config = _shape_config(name, layers)
    printed = pd.read_csv(paths.PAPER / "alpha_search.csv")
    printed = printed.query("model == @name and task == 'wikitext'")
    alphas = printed.sort_values("layer", ascending=False)["value"].tolist()
    count = max(1, round(len(alphas) * layers / paper_configs()[name].num_hidden_layers))
    plan = PruningPlan.value_only(layers, alphas[:count])
    return random_model(config, dtype, seed), plan


def _shape_config(name: str, layers: int) -> PreTrainedConfig:
    """The config of a model of the paper, cut to its first layers."""
    config = paper_configs()[name]
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    return config


def obstacle(name: str, layers: int, dtype: str) -> str | None:
    """Why a random shape cannot be timed on this machine; None if it can.

    Where bfloat16 is emulated, its times are those of the emulation.
    """
    if torch.cuda.is_available():
        return None
    if dtype == "bfloat16" and not multiplies_bfloat16():
        return "this processor has no instructions for bfloat16"
    weights = parameters(_shape_config(name, layers)) * getattr(torch, dtype).itemsize
    needed = MEMORY_OF_VARIANTS * weights / 2**30
    free = psutil.virtual_memory().available / 2**30
    if needed > free:
        return f"it takes {needed:.1f} GiB of memory, and {free:.1f} GiB are free"
    return None


def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for matrices of bfloat16: AMX, or AVX-512 BF16."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def efficiency(job: Job) -> None:
    """Count, then measure at every length that the model can read.

    What fails, as for want of memory, says so.
    """
    settings = job.profile["efficiency"]
    shape = settings["shapes"].get(job.name)
    if shape:
        dtype = job.profile["dtype"]
        reason = obstacle(shape["config"], shape["layers"], dtype)
        if reason:
            print(f"{job.name} is left out: {reason}")
            return
        model, plan = random_shape(shape["config"], shape["layers"], dtype, job.seed)
        digest = f"random, {plan.num_layers} layers"
        inputs = {"model": job.name, "digest": digest, "dtype": str(model.dtype)}
    else:
        model = job.model
        plan = PruningPlan.value_only(job.num_layers, job.alphas(job.corpora[0]))
        inputs = job.inputs
    bench = Bench(make_variants(model, plan), inputs, job)
    measurements = _measurements(settings) + _llama_cpp_measurements(settings, model)
    for cell in bench.cells(measurements):
        job.result(cell)


def _measurements(settings: dict[str, Any]) -> list[Measurement]:
    """What a profile asks to be timed, but in llama.cpp."""
    prefills = settings["prefill"]  # repetitions by tokens
    decoding = settings["decode"]
    return [
        *(("prefill", tokens, repetitions) for tokens, repetitions in prefills.items()),
        *(("split", tokens, prefills[tokens]) for tokens in settings["split"]),
        *(("decode", tokens, decoding["repetitions"]) for tokens in decoding["contexts"]),
    ]


def _llama_cpp_measurements(settings: dict[str, Any], model: PreTrainedModel) -> list[Measurement]:
    """What a profile asks to be timed in llama.cpp: nothing where that is missing.

    Nor is it of a model that llama.cpp cannot run.
    """
    repetitions_by_tokens = settings["llama_cpp"]
    if not repetitions_by_tokens:
        return []
    try:
        from harp_lib.models.gguf import check_gguf  # here, because it needs a package of its own

        import_module("xllamacpp")
        check_gguf(model)
    except (ValueError, ImportError):
        return []
    return [("llama_cpp", tokens, number) for tokens, number in repetitions_by_tokens.items()]


class Bench:
    """The variants of one model, and what is measured and counted of them.

    ``inputs`` are those of the model.
    """

    def __init__(self, variants: dict[str, Variant], inputs: dict[str, Any], job: Job) -> None:
        self.variants = variants
        self.job = job
        self.config = variants[DENSE].model.config
        self.device = variants[DENSE].model.device
        self.steps = job.profile["efficiency"]["decode"]["steps"]  # new tokens
        plans = {}
        for name, variant in variants.items():
            plans[name] = variant.plan.digest if variant.plan else None
        self.inputs = inputs | {"seed": job.seed, "plans": plans}

    def cells(self, measurements: Sequence[Measurement]) -> Iterator[Cell]:
        """What is counted, then each measurement that the model has room for, by length."""
        lengths = {tokens for kind, tokens, _ in measurements if kind != "llama_cpp"}
        yield self.counted_cell(sorted(lengths))
        for kind, tokens, repetitions in sorted(measurements, key=lambda of: of[1]):
            if tokens + self._new_tokens(kind) <= self.config.max_position_embeddings:
                yield self.timed_cell(kind, tokens, repetitions)

    def counted_cell(self, lengths: list[int]) -> Cell:
        """The cell of :meth:`counted`."""
        inputs = self.inputs | {"lengths": lengths}
        counted = partial(self.counted, lengths)
        return Cell("all", "counted", inputs, counted, {"kind": "counted"})

    def timed_cell(self, kind: str, tokens: int, repetitions: int) -> Cell:
        """The cell of one measurement at one length."""
        inputs = self.inputs | {"device": device_name(), "threads": torch.get_num_threads()}
        inputs |= {"tokens": tokens, "repetitions": repetitions}
        if self._new_tokens(kind):
            inputs["steps"] = self.steps
        compute = partial(or_failed, self.measure, kind, tokens, repetitions)
        return Cell("all", f"{kind}-{tokens}", inputs, compute, {"kind": kind, "length": tokens})

    def _new_tokens(self, kind: str) -> int:
        """Number of tokens that a measurement writes."""
        return self.steps if kind in ("decode", "llama_cpp") else 0

    def measure(self, kind: str, tokens: int, repetitions: int) -> Result:
        """The result of one cell.

        ``tokens`` are read (prefill, split), or are in the cache before the first new one (decode).
        """
        methods = {
            "prefill": self.prefill,
            "split": self.split,
            "decode": self.decode,
            "llama_cpp": self.llama_cpp,
        }
        models = {}
        for name, variant in self.variants.items():
            if name in TIMED[kind]:
                models[name] = variant.model
        runs = len(models) * repetitions
        if repetitions > 1:  # each begins with one that is forgotten
            runs += len(models)
        with tqdm(total=runs, desc=f"{kind}, {tokens} tokens", unit="run", leave=False) as bar:
            return methods[kind](models, tokens, repetitions, bar)

    def prefill(self, models: Models, tokens: int, repetitions: int, bar: tqdm) -> Result:
        """Seconds of a prefill, counted operations of one, and cache and peak of one before."""
        ids = self._ids(tokens)
        rows = []
        # What a process takes once shall not be in the first peak.
        timing.prefill(models[DENSE], ids[:, :16])
        prefills = {name: partial(timing.prefill, model, ids) for name, model in models.items()}
        if repetitions > 1:
            for name, prefill in prefills.items():
                rows += self._memory_rows(name, prefill)
                bar.update()
        timed = self._timed(prefills)
        seconds = timing.interleaved(timed, repetitions, bar, warm_up=False)
        for pairs, causal in PAIRS.items():
            for name, (_, plan, fold_output, tail_only) in self.variants.items():
                flops = prefill_flops(self.config, plan, tokens, causal, fold_output, tail_only)
                rows.append({"quantity": f"flops {pairs}", "variant": name, "value": flops})
        return {"rows": _repeated(seconds) + rows}

    def _memory_rows(self, name: str, prefill: Callable[[], Any]) -> list[Row]:
        """Bytes of the cache that a prefill fills, and of memory at its peak."""
        held, peak = timing.peak_memory(lambda: timing.cache_bytes(prefill()), self.device)
        return [
            {"quantity": "cache_bytes", "variant": name, "value": held},
            {"quantity": "peak_bytes", "variant": name, "value": peak},
        ]

    def _timed(self, runs: Mapping[str, Callable[[], Any]]) -> dict[str, Callable[[], float]]:
        """For each run by name a function that returns its seconds."""
        return {name: partial(timing.seconds_of, run, self.device) for name, run in runs.items()}

    def split(self, models: Models, tokens: int, repetitions: int, bar: tqdm) -> Result:
        """Seconds of a prefill in attention, its projections, FFN and the rest."""
        parts = {}
        for name, model in models.items():
            prefill = partial(timing.prefill, model, self._ids(tokens))
            parts[name] = partial(timing.module_seconds, model, prefill, self.device)
        measured = timing.interleaved(parts, repetitions, bar, repetitions > 1)
        rows = []
        for name, repeated in measured.items():
            for repetition, seconds_of_parts in enumerate(repeated):
                for part, seconds in seconds_of_parts.items():
                    row = _seconds_row(name, repetition, seconds)
                    rows.append(row | {"part": part})
        return {"rows": rows}

    def decode(self, models: Models, tokens: int, repetitions: int, bar: tqdm) -> Result:
        """Seconds of some new tokens after ``tokens`` others.

        Beside them the bytes that the first of the new tokens has to move.
        """
        ids = self._ids(self.steps)
        caches = {name: timing.filled_cache(model, tokens) for name, model in models.items()}
        rows = []
        for name, model in models.items():
            moved = weight_bytes(model) + CACHE_MOVES * timing.cache_bytes(caches[name])
            rows.append({"quantity": "bytes", "variant": name, "value": moved})

        def run(name: str) -> torch.Tensor:
            return timing.decode(models[name], continued(caches[name]), ids)

        timed = self._timed({name: partial(run, name) for name in models})
        seconds = timing.interleaved(timed, repetitions, bar, repetitions > 1)
        return {"rows": _repeated(seconds) + rows}

    def llama_cpp(self, models: Models, tokens: int, repetitions: int, bar: tqdm) -> Result:
        """Speeds of llama.cpp, with weights in float16.

        Tokens a second, of a prompt and of what is written after it.
        """
        from harp_lib.models.gguf import save_gguf  # here, because it needs a package of its own

        prompt = self._ids(tokens)[0].tolist()
        timed = {}
        rows = []
        with TemporaryDirectory() as folder:
            for name, model in models.items():
                file = Path(folder, name)
                plan = self.variants[name].plan
                if plan is None:
                    save_gguf(model, self.job.tokenizer, file)
                else:  # a file is written of a model whose config says how it was pruned
                    pruned = surgery.apply_plan(copy.deepcopy(models[DENSE]), plan)
                    save_gguf(pruned, self.job.tokenizer, file)
                engine = LlamaCpp(file, tokens + self.steps + 1)
                timed[name] = partial(engine.write, prompt, self.steps)
            answers = timing.interleaved(timed, repetitions, bar, repetitions > 1)
        for name, repeated in answers.items():
            for repetition, answer in enumerate(repeated):
                for quantity in ("prompt", "generation"):
                    row = {"quantity": quantity, "variant": name, "repetition": repetition}
                    rows.append(row | {"value": answer[quantity]})
        texts = {name: repeated[0]["text"] for name, repeated in answers.items()}
        return {"rows": rows, "texts": texts}

    def counted(self, lengths: list[int]) -> Result:
        """Operations of each part of the dense model by length.

        The curve goes up to where attention takes more than the FFNs.
        """
        width = self.config.intermediate_size
        longest = max(*lengths, 4 * width)
        curve = np.geomspace(lengths[0] / 2, longest, POINTS).round()
        rows = [{"quantity": "intermediate_size", "value": width}]
        for pairs, causal in PAIRS.items():
            for tokens in np.unique(curve).astype(int).tolist():
                layers = pd.DataFrame(prefill_layers(self.config, None, tokens, causal))
                for part, flops in layers.sum().to_dict().items():
                    row = {"quantity": f"flops {pairs}", "length": tokens, "part": part}
                    rows.append(row | {"value": flops})
        return {"rows": rows}

    def _ids(self, tokens: int) -> torch.Tensor:
        """Random tokens, ``(1, tokens)``."""
        generator = torch.Generator().manual_seed(self.job.seed)
        ids = torch.randint(self.config.vocab_size, (1, tokens), generator=generator)
        return ids.to(self.device)


def _repeated(seconds: Mapping[str, Sequence[float]]) -> list[Row]:
    """A row for each variant and repetition."""
    return [
        _seconds_row(name, repetition, value)
        for name, repeated in seconds.items()
        for repetition, value in enumerate(repeated)
    ]


def _seconds_row(variant: str, repetition: int, value: float) -> Row:
    return {"quantity": "seconds", "variant": variant, "repetition": repetition, "value": value}


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of the weights that every token reads.

    These are all but an embedding that is not the output head.
    """
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    return sum(
        weight.nbytes for weight in model.parameters() if weight is head or weight is not embedding
    )
