"""The experiment of notebook 08: time and memory of a dense model and of its pruned variants."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from harp_lib.accounting import (
    PAPER_MODELS,
    count_groups,
    kv_bytes_per_token,
    paper_configs,
    parameters,
    removed_fraction,
)
from harp_lib.experiments.efficiency_variants import DENSE, HARP, load_dense, make_variants
from harp_lib.experiments.score_study import release_memory
from harp_lib.accounting import LayerFlops, attention_window, layer_flops, overtaking_length, prefill_flops
from harp_lib.measure.timing import (
    cache_bytes,
    continued,
    decode,
    filled_cache,
    interleaved,
    module_seconds,
    peak_memory,
    prefill,
    seconds_of,
)
from harp_lib.methods.alpha_search import model_digest
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import ResultStore, device_name

EXPERIMENT = "efficiency"
ALL = "all"  # in place of a method: all variants are timed in turn, in one cell
PAIRS = {"full": False, "causal": True}  # query-key pairs that are counted: all, or those that are visible
POINTS = 33  # of each counted curve
CACHE_MOVES = 3  # of all keys and values for each new token: read and written for a longer copy, read by attention
# How allocators and cuBLAS say it that raise no error of a kind of its own, as on a CPU.
NO_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory|ALLOC_FAILED")


class Job(NamedTuple):
    """One cell of measurements.

    Attributes
    ----------
    kind : str
        ``prefill``, ``split`` or ``decode``.
    tokens : int
        That are read, or that are in the cache before the first new one.
    repetitions : int
        What is repeated is warmed up by one run more.
    variants : tuple of str
        That are measured in turn.
    """

    kind: str
    tokens: int
    repetitions: int
    variants: tuple[str, ...]

    @property
    def warm_up(self) -> bool:
        return self.repetitions > 1

    @property
    def runs(self) -> int:
        return len(self.variants) * (self.repetitions + self.warm_up)


class EfficiencyStudy:
    """All cells of one model.

    Parameters
    ----------
    name : str
        The model as :func:`harp_lib.experiments.efficiency_variants.load_dense` knows it.
    profile : dict
        From :func:`harp_lib.profiles.load_profile`; ``profile["efficiency"]`` says at which lengths and how often.
    store : ResultStore
        Takes the cells.
    seed : int
        Chooses tokens and random weights.
    """

    def __init__(self, name: str, profile: dict[str, Any], store: ResultStore, seed: int = 0) -> None:
        self.name, self.store, self.seed, self.settings = name, store, seed, profile["efficiency"]
        model, plan = load_dense(name, profile, seed)
        self.variants = make_variants(model, plan)
        self.config, self.device = model.config, model.device
        random = f"random, {self.config.num_hidden_layers} layers"
        digest = random if name in PAPER_MODELS else model_digest(model)
        self.inputs = {"model": name, "digest": digest, "dtype": str(model.dtype), "seed": seed}
        self.inputs |= {"plans": {key: variant.plan and variant.plan.digest for key, variant in self.variants.items()}}

    def measure(self) -> None:
        """Count, then measure at every length that the model can read; longer ones are named in what is counted.

        A cell that fails for want of memory says so and is shown as missing; the others go on.
        """
        readable = self.config.max_position_embeddings
        jobs = [job for job in self._jobs() if job.tokens <= readable]
        lengths = sorted({job.tokens for job in self._jobs()})
        left_out = [tokens for tokens in lengths if tokens > readable]
        inputs = self.inputs | {"lengths": lengths}
        self.store.cell(self.name, ALL, "counted", inputs, lambda _: self.counted(lengths, left_out))
        how = {"device": device_name(), "threads": torch.get_num_threads()}
        with tqdm(total=sum(job.runs for job in jobs), desc="timing", unit="run") as bar:
            for job in sorted(jobs, key=lambda job: job.tokens):
                before, task = bar.n, f"{job.kind}-{job.tokens}"
                bar.set_postfix_str(task)
                inputs = self.inputs | how | {"tokens": job.tokens, "repetitions": job.repetitions}
                if job.kind == "decode":
                    inputs["steps"] = self.settings["decode"]["steps"]
                self.store.cell(self.name, ALL, task, inputs, lambda _, job=job: self._result(job, bar))
                bar.update(before + job.runs - bar.n)  # of a cell that was read, or that failed

    def _jobs(self) -> Iterator[Job]:
        often, decoding = self.settings["prefill"], self.settings["decode"]
        for tokens, repetitions in often.items():
            yield Job("prefill", tokens, repetitions, tuple(self.variants))
        for tokens in self.settings["split"]:
            yield Job("split", tokens, often[tokens], (DENSE, HARP))
        for tokens in decoding["contexts"]:
            yield Job("decode", tokens, decoding["repetitions"], tuple(self.variants))

    def _result(self, job: Job, bar: tqdm) -> dict[str, Any]:
        try:
            return getattr(self, job.kind)(job, bar)
        except torch.AcceleratorError:  # the device is lost to this process
            raise
        except (RuntimeError, MemoryError) as error:
            if not isinstance(error, (torch.OutOfMemoryError, MemoryError)) and not NO_MEMORY.search(str(error)):
                raise
            failed = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        release_memory()  # which the error held on to until here
        return {"failed": failed}

    def prefill(self, job: Job, bar: tqdm) -> dict[str, Any]:
        """Seconds of a prefill; operations of one, counted; cache and memory of another one before."""
        ids = self._ids(job.tokens)
        runs = {name: partial(prefill, self.variants[name].model, ids) for name in job.variants}
        held, peak = {}, {}
        prefill(self.variants[DENSE].model, ids[:, :16])  # what a process takes once is no part of the first peak
        for name in job.variants if job.warm_up else ():
            held[name], peak[name] = peak_memory(lambda run=runs[name]: cache_bytes(run()), self.device)
            bar.update()
        timed = {name: partial(seconds_of, run, self.device) for name, run in runs.items()}
        seconds = interleaved(timed, job.repetitions, bar, warm_up=False)
        flops = {pairs: self._flops(job.tokens, causal) for pairs, causal in PAIRS.items()}
        return {"seconds": seconds, "flops": flops, "cache_bytes": held, "peak_bytes": peak}

    def split(self, job: Job, bar: tqdm) -> dict[str, Any]:
        """Seconds of a prefill in attention, its projections, FFN and the rest."""
        ids, parts = self._ids(job.tokens), {}
        for name in job.variants:
            model = self.variants[name].model
            parts[name] = partial(module_seconds, model, partial(prefill, model, ids), self.device)
        return {"seconds": interleaved(parts, job.repetitions, bar, job.warm_up)}

    def decode(self, job: Job, bar: tqdm) -> dict[str, Any]:
        """Seconds of some new tokens after ``job.tokens`` others, and the bytes that the first of them has to move."""
        steps = self.settings["decode"]["steps"]
        if job.tokens + steps > self.config.max_position_embeddings:
            return {"failed": f"with {steps} new tokens more than the model reads"}
        ids, timed, moved = self._ids(steps), {}, {}
        for name in job.variants:
            model = self.variants[name].model
            cache = filled_cache(model, job.tokens)
            moved[name] = self._weight_bytes(name) + CACHE_MOVES * cache_bytes(cache)

            def run(model=model, cache=cache) -> torch.Tensor:
                return decode(model, continued(cache), ids)

            timed[name] = partial(seconds_of, run, self.device)
        return {"seconds": interleaved(timed, job.repetitions, bar, job.warm_up), "bytes": moved}

    def _ids(self, tokens: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(self.config.vocab_size, (1, tokens), generator=generator).to(self.device)

    def _flops(self, tokens: int, causal: bool) -> dict[str, int]:
        return {
            name: prefill_flops(self.config, variant.plan, tokens, causal, variant.fold_output)
            for name, variant in self.variants.items()
        }

    def _weight_bytes(self, name: str) -> int:
        """Bytes of the weights that every token reads: all but an embedding that is not the output head."""
        model, plan, fold_output = self.variants[name]
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        rows = 0 if embedding is head else embedding.numel()
        return (parameters(self.config, plan, fold_output) - rows) * model.dtype.itemsize

    def counted(self, lengths: list[int], left_out: list[int]) -> dict[str, Any]:
        """What follows from config and plans: operations of each part by length, what each variant removes, caches."""
        config, layers = self.config, range(self.config.num_hidden_layers)
        end = max(*lengths, 4 * config.intermediate_size)  # beyond where attention overtakes the FFN, however counted
        curve = [int(tokens) for tokens in np.unique(np.geomspace(lengths[0] / 2, end, POINTS).round())]
        variants = {}
        for name, (model, plan, fold_output) in self.variants.items():
            groups = count_groups(config, plan)
            variants[name] = {
                "groups": sum(total for total, _ in groups),
                "removed_groups": sum(total - kept for total, kept in groups),
                "removed_fraction": removed_fraction(config, plan or PruningPlan(len(layers), {})),
                "parameters": parameters(config, plan, fold_output),
                "kv_bytes_per_token": kv_bytes_per_token(config, plan, model.dtype),
                "layers_without_attention": sum(kept == 0 for _, kept in groups),
            }
        return {
            "layers": len(layers),
            "whole_layers": paper_configs()[self.name].num_hidden_layers if self.name in PAPER_MODELS else len(layers),
            "random_shape": self.name in PAPER_MODELS,
            "intermediate_size": config.intermediate_size,
            "windows": any(attention_window(config, layer) for layer in layers),
            "variants": variants,
            "lengths": curve,
            "flops": {pairs: [self._parts(tokens, causal) for tokens in curve] for pairs, causal in PAIRS.items()},
            "overtaking": {pairs: self._overtaking(causal) for pairs, causal in PAIRS.items()},
            "left_out": left_out,
        }

    def _parts(self, tokens: int, causal: bool) -> dict[str, int]:
        layers = range(self.config.num_hidden_layers)
        counts = [layer_flops(self.config, tokens, layer, causal) for layer in layers]
        return {part: sum(getattr(count, part) for count in counts) for part in LayerFlops._fields}

    def _overtaking(self, causal: bool) -> dict[str, int | None]:
        """Where attention takes as many operations as the FFNs, alone and with its projections; None: nowhere."""
        found = {}
        for part, with_projections in {"attention": False, "with_projections": True}.items():
            try:
                found[part] = overtaking_length(self.config, causal, with_projections)
            except ValueError:  # every layer has a short sliding window
                found[part] = None
        return found
