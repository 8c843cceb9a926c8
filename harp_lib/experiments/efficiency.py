"""Notebook 08: time and memory of a dense model and of its pruned variants, measured in turn."""

import copy
import re
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm
from transformers import PreTrainedConfig, PreTrainedModel

from harp_lib import config as paths
from harp_lib.accounting import (
    PAPER_MODELS,
    LayerFlops,
    count_groups,
    layer_flops,
    paper_configs,
    parameters,
    prefill_flops,
)
from harp_lib.experiments.job import Job
from harp_lib.experiments.llama_cpp import LlamaCpp
from harp_lib.measure import timing
from harp_lib.measure.models import random_model, release_memory
from harp_lib.pruning.architecture import check_plan, decoder_layers
from harp_lib.pruning.gguf import check_gguf, save_gguf
from harp_lib.pruning.layers import folds
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.remote import pruned_class
from harp_lib.pruning.surgery import swap_modules
from harp_lib.results import device_name

DENSE, HARP, TAIL, FOLDED, THINNED = "dense", "harp", "harp-tail", "harp-folded", "thinned"
PAIRS = {"full": False, "causal": True}  # query-key pairs that are counted: all, or those that are visible
POINTS = 33  # of each counted curve
CACHE_MOVES = 3  # of all keys and values for each new token: read and written for a longer copy, read by attention
# How allocators and cuBLAS say it that raise no error of a kind of its own, as on a CPU.
NO_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory|ALLOC_FAILED")


class Variant(NamedTuple):
    """A model that is ready to be timed, and how it was pruned; no plan: dense."""

    model: PreTrainedModel
    plan: PruningPlan | None = None
    fold_output: bool = False
    tail_only: bool = False  # a prefill sends its last position alone through the pruned layers at the top


def make_variants(model: PreTrainedModel, plan: PruningPlan) -> dict[str, Variant]:
    """The dense model, HARP's plan carried out in three ways, and as many groups taken from all layers evenly.

    All share the weights of ``model``: what a variant has of its own are sliced and folded projections. Alpha is left
    out. In a pruned model it is in the weights and takes no time; only where it is 0 does the rest of the attention
    go too, and that it does here. A variant that a model cannot have is left out.
    """
    plans, thinned = {HARP: plan, TAIL: plan}, thinned_plan(model.config, plan)
    if any(alpha and folds(decoder_layers(model)[layer].self_attn) for layer, alpha in plan.alphas.items()):
        plans[FOLDED] = plan
    with suppress(ValueError):  # as of a norm over all heads
        check_plan(model, thinned)
        plans[THINNED] = thinned
    variants, weights = {DENSE: Variant(model)}, (*model.parameters(), *model.buffers())
    for name, carried_out in plans.items():
        twin = copy.deepcopy(model, {id(tensor): tensor for tensor in weights})
        swap_modules(twin, carried_out, fold_output=name == FOLDED)
        if name == TAIL:
            twin.__class__ = pruned_class(type(twin))  # whose forward pass it is; the others run every position
        variants[name] = Variant(twin, carried_out, name == FOLDED, name == TAIL)
    return variants


def thinned_plan(config: PreTrainedConfig, plan: PruningPlan) -> PruningPlan:
    """The plan that takes as many groups as ``plan`` takes, as evenly from all layers as whole groups allow."""
    total, kept = np.array(count_groups(config, plan)).T  # of each layer
    upto = total.cumsum() * (total - kept).sum() // total.sum()  # groups that are gone at its top
    lost = enumerate(np.diff(upto, prepend=0).tolist())
    layers = {layer: LayerPlan(removed_groups=tuple(range(count))) for layer, count in lost if count}
    return PruningPlan(plan.num_layers, layers, THINNED)


def random_shape(name: str, profile: dict[str, Any], seed: int) -> tuple[PreTrainedModel, PruningPlan]:
    """One of ``PAPER_MODELS`` with random weights, on which no time depends, and HARP's plan of the published alphas.

    ``profile["efficiency"]["layers"]`` may cut it to its first layers; the same share of them is pruned then.
    """
    config = copy.deepcopy(paper_configs()[name])
    whole = config.num_hidden_layers
    config.num_hidden_layers = profile["efficiency"]["layers"] or whole
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    printed = pd.read_csv(paths.PAPER / "alpha_search.csv").query("model == @name and task == 'wikitext'")
    alphas = printed.sort_values("layer", ascending=False)["value"].tolist()
    alphas = alphas[: max(1, round(len(alphas) * config.num_hidden_layers / whole))]
    return random_model(config, profile["dtype"], seed), PruningPlan.value_only(config.num_hidden_layers, alphas)


def efficiency(job: Job) -> None:
    """Count, then measure at every length that the model can read.

    A cell that fails for want of memory says so and is shown as missing; the others go on.
    """
    if job.name in PAPER_MODELS:
        model, plan = random_shape(job.name, job.profile, job.seed)
        digest = f"random, {len(decoder_layers(model))} layers"
        inputs = {"model": job.name, "digest": digest, "dtype": str(model.dtype)}
    else:
        model, inputs = job.model, job.inputs
        plan = PruningPlan.value_only(job.num_layers, job.alphas(job.corpora[0]))
    bench, settings = Bench(make_variants(model, plan), job), job.profile["efficiency"]
    inputs |= {"seed": job.seed, "plans": {name: v.plan and v.plan.digest for name, v in bench.variants.items()}}
    often, decoding = settings["prefill"], settings["decode"]
    wanted = [("prefill", tokens, often[tokens]) for tokens in often]
    wanted += [("split", tokens, often[tokens]) for tokens in settings["split"]]
    wanted += [("decode", tokens, decoding["repetitions"]) for tokens in decoding["contexts"]]
    lengths, readable = sorted({tokens for _, tokens, _ in wanted}), model.config.max_position_embeddings
    job.cell("all", "counted", inputs | {"lengths": lengths}, partial(bench.counted, lengths))
    inputs |= {"device": device_name(), "threads": torch.get_num_threads()}
    with suppress(ValueError, ImportError):  # a model that llama.cpp cannot run, or no llama.cpp
        check_gguf(model)
        import_module("xllamacpp")
        wanted += [("llama_cpp", tokens, times) for tokens, times in settings["llama_cpp"].items()]
    for kind, tokens, repetitions in sorted(wanted, key=lambda each: each[1]):
        if tokens <= readable:
            depends = inputs | {"tokens": tokens, "repetitions": repetitions}
            depends |= {"steps": decoding["steps"]} if kind in ("decode", "llama_cpp") else {}
            job.cell("all", f"{kind}-{tokens}", depends, partial(bench.measure, kind, tokens, repetitions))


class Bench:
    """The variants of one model, and what is measured and counted of them."""

    def __init__(self, variants: dict[str, Variant], job: Job) -> None:
        self.variants, self.job, self.seed = variants, job, job.seed
        self.config, self.device = variants[DENSE].model.config, variants[DENSE].model.device
        self.steps = job.profile["efficiency"]["decode"]["steps"]

    def measure(self, kind: str, tokens: int, repetitions: int) -> dict[str, Any]:
        """One cell: ``tokens`` are read (prefill, split), or are in the cache before the first new one (decode).

        Variants are measured in turn, and once before, forgotten, where there are several repetitions.
        """
        names = {"prefill": list(self.variants), "split": [DENSE, HARP], "llama_cpp": [DENSE, HARP]}.get(kind)
        names = names or [name for name in self.variants if name != TAIL]  # which decodes as HARP does
        runs = len(names) * (repetitions + (repetitions > 1))
        try:
            with tqdm(total=runs, desc=f"{kind}, {tokens} tokens", unit="run", leave=False) as bar:
                return getattr(self, kind)(names, tokens, repetitions, bar)
        except torch.AcceleratorError:  # the device is lost to this process
            raise
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, RuntimeError) and not NO_MEMORY.search(str(error)):
                raise
            failed = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        release_memory()  # which the error held on to until here
        return {"failed": failed}

    def prefill(self, names: list[str], tokens: int, repetitions: int, bar: tqdm) -> dict[str, Any]:
        """Seconds of a prefill; operations of one, counted; cache and memory of another one before."""
        ids, held, peak = self._ids(tokens), {}, {}
        runs = {name: partial(timing.prefill, self.variants[name].model, ids) for name in names}
        timing.prefill(self.variants[DENSE].model, ids[:, :16])  # what a process takes once is not in the first peak
        for name, run in runs.items() if repetitions > 1 else ():
            held[name], peak[name] = timing.peak_memory(lambda run=run: timing.cache_bytes(run()), self.device)
            bar.update()
        timed = {name: partial(timing.seconds_of, run, self.device) for name, run in runs.items()}
        seconds = timing.interleaved(timed, repetitions, bar, warm_up=False)
        flops = {
            pairs: {
                name: prefill_flops(self.config, variant.plan, tokens, causal, *variant[2:])
                for name, variant in self.variants.items()
            }
            for pairs, causal in PAIRS.items()
        }
        return {"seconds": seconds, "flops": flops, "cache_bytes": held, "peak_bytes": peak}

    def split(self, names: list[str], tokens: int, repetitions: int, bar: tqdm) -> dict[str, Any]:
        """Seconds of a prefill in attention, its projections, FFN and the rest."""
        ids, parts = self._ids(tokens), {}
        for name in names:
            model = self.variants[name].model
            parts[name] = partial(timing.module_seconds, model, partial(timing.prefill, model, ids), self.device)
        return {"seconds": timing.interleaved(parts, repetitions, bar, repetitions > 1)}

    def decode(self, names: list[str], tokens: int, repetitions: int, bar: tqdm) -> dict[str, Any]:
        """Seconds of some new tokens after ``tokens`` others, and the bytes that the first of them has to move."""
        if tokens + self.steps > self.config.max_position_embeddings:
            return {"failed": f"with {self.steps} new tokens more than the model reads"}
        ids, timed, moved = self._ids(self.steps), {}, {}
        for name in names:
            model = self.variants[name].model
            cache = timing.filled_cache(model, tokens)
            moved[name] = self._weight_bytes(name) + CACHE_MOVES * timing.cache_bytes(cache)

            def run(model=model, cache=cache) -> torch.Tensor:
                return timing.decode(model, timing.continued(cache), ids)

            timed[name] = partial(timing.seconds_of, run, self.device)
        return {"seconds": timing.interleaved(timed, repetitions, bar, repetitions > 1), "bytes": moved}

    def _ids(self, tokens: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(self.config.vocab_size, (1, tokens), generator=generator).to(self.device)

    def _weight_bytes(self, name: str) -> int:
        """Bytes of the weights that every token reads: all but an embedding that is not the output head."""
        model, plan, fold_output, _ = self.variants[name]
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        rows = 0 if embedding is head else embedding.numel()
        return (parameters(self.config, plan, fold_output) - rows) * model.dtype.itemsize

    def counted(self, lengths: list[int]) -> dict[str, Any]:
        """Operations of each part of the dense model by length, up to where attention takes more than the FFNs."""
        end = max(*lengths, 4 * self.config.intermediate_size)
        curve = [int(tokens) for tokens in np.unique(np.geomspace(lengths[0] / 2, end, POINTS).round())]
        flops = {pairs: [self._parts(tokens, causal) for tokens in curve] for pairs, causal in PAIRS.items()}
        return {"intermediate_size": self.config.intermediate_size, "lengths": curve, "flops": flops}

    def _parts(self, tokens: int, causal: bool) -> dict[str, int]:
        counts = (layer_flops(self.config, tokens, layer, causal) for layer in range(self.config.num_hidden_layers))
        return dict(zip(LayerFlops._fields, map(sum, zip(*counts, strict=True)), strict=True))

    def llama_cpp(self, names: list[str], tokens: int, repetitions: int, bar: tqdm) -> dict[str, Any]:
        """Tokens a second of llama.cpp, of a prompt and of what is written after it, with weights in float16."""
        prompt, engines = self._ids(tokens)[0].tolist(), {}
        with TemporaryDirectory() as folder:
            for name in names:
                save_gguf(self.variants[name].model, self.job.tokenizer, Path(folder, name))
                engines[name] = LlamaCpp(Path(folder, name), tokens + self.steps + 1)
            timed = {name: partial(engine.write, prompt, self.steps) for name, engine in engines.items()}
            return {"speed": timing.interleaved(timed, repetitions, bar, repetitions > 1)}
