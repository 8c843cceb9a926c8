"""Notebook 08: time and memory of a dense model and of its pruned variants, measured in turn."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.accounting import prefill_flops, prefill_layers
from harp_lib.circumstances import device_name, hardware
from harp_lib.evaluation import timing
from harp_lib.evaluation.llama_cpp import LlamaCpp
from harp_lib.experiments.context import Context, or_failed
from harp_lib.experiments.search import searched_alphas
from harp_lib.experiments.variants import (
    FOLDED,
    TAIL,
    THINNED,
    Variant,
    make_variants,
    random_shape,
    why_not_timed,
)
from harp_lib.names import DENSE, HARP
from harp_lib.prefix_lm.cache import continued
from harp_lib.pruning import surgery
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import Cell, Result, Row

TIMED = {
    "prefill": (DENSE, HARP, TAIL, FOLDED, THINNED),
    "decode": (DENSE, HARP, FOLDED, THINNED),  # TAIL decodes as HARP does
    "split": (DENSE, HARP),
    "llama_cpp": (DENSE, HARP),
}
"""The variants that are timed, by the kind of measurement: a method of :class:`Bench`."""
PAIRS = {"full": False, "causal": True}
"""Query-key pairs that are counted: all, or those that are visible."""
POINTS = 33  # of each counted curve

Measurement = tuple[str, int, int]  # kind, tokens and repetitions
Models = dict[str, PreTrainedModel]  # by the name of a variant


def efficiency(context: Context) -> Iterator[Cell]:
    """Count, then measure at every length that the model can read.

    What fails, as for want of memory, says so.
    """
    settings = context.profile["efficiency"]
    shape = settings["shapes"].get(context.name)
    if shape:
        yield from _cells_of_shape(context, shape["config"], shape["layers"])
        return
    searched = searched_alphas(context, context.corpora[0])
    plan = PruningPlan.value_only(context.num_layers, searched)
    bench = Bench(make_variants(context.model, plan), context.inputs, context)
    yield from bench.cells(_measurements(settings, context.model))


def _cells_of_shape(context: Context, name: str, num_layers: int) -> list[Cell]:
    """The cells of a model of the paper with random weights; none if it cannot be timed here.

    If all are stored, its weights are not made: they may take minutes, and 16 GB.
    """
    settings = context.profile["efficiency"]
    dtype = context.profile["dtype"]

    def cells_of(model: PreTrainedModel, plan: PruningPlan) -> list[Cell]:
        digest = f"random, {num_layers} layers"
        inputs = {"model": context.name, "digest": digest, "dtype": str(model.dtype)}
        bench = Bench(make_variants(model, plan), inputs, context)
        return list(bench.cells(_measurements(settings, model)))

    cells = cells_of(*random_shape(name, num_layers, dtype, context.seed, narrow=True))
    if all(context.store.has(cell, context.force) for cell in cells):
        return cells
    reason = why_not_timed(name, num_layers, dtype)
    if reason:
        print(f"{context.name} is left out: {reason}")
        return []
    return cells_of(*random_shape(name, num_layers, dtype, context.seed))


def _measurements(settings: dict[str, Any], model: PreTrainedModel) -> list[Measurement]:
    """What a profile asks to be timed."""
    prefills = settings["prefill"]  # repetitions by tokens
    decoding = settings["decode"]
    measurements = [
        *(("prefill", tokens, repetitions) for tokens, repetitions in prefills.items()),
        *(("split", tokens, prefills.get(tokens, 1)) for tokens in settings["split"]),
        *(("decode", tokens, decoding["repetitions"]) for tokens in decoding["contexts"]),
    ]
    in_llama_cpp = settings["llama_cpp"]  # repetitions by tokens
    if in_llama_cpp and _runs_in_llama_cpp(model):
        for tokens, repetitions in in_llama_cpp.items():
            measurements.append(("llama_cpp", tokens, repetitions))
    return measurements


def _runs_in_llama_cpp(model: PreTrainedModel) -> bool:
    """Whether llama.cpp is installed, and can run the model."""
    try:
        import_module("xllamacpp")
    except ImportError:
        return False
    from harp_lib.export.gguf import check_gguf  # here, because it needs a package of its own

    try:
        check_gguf(model)
    except ValueError:
        return False
    return True


class Bench:
    """The variants of one model, and what is measured and counted of them.

    ``inputs`` are those of the model.
    """

    def __init__(
        self, variants: dict[str, Variant], inputs: dict[str, Any], context: Context
    ) -> None:
        self.variants = variants
        self.context = context
        self.config = variants[DENSE].model.config
        self.device = variants[DENSE].model.device
        self.steps = context.profile["efficiency"]["decode"]["steps"]  # new tokens
        plans = {}
        for name, variant in variants.items():
            plans[name] = variant.plan.digest if variant.plan else None
        self.inputs = inputs | {"seed": context.seed, "plans": plans}

    def cells(self, measurements: Sequence[Measurement]) -> Iterator[Cell]:
        """What is counted, then each measurement that the model has room for, by length."""
        lengths = {tokens for kind, tokens, _ in measurements if kind != "llama_cpp"}
        yield self.counted_cell(sorted(lengths))
        for kind, tokens, repetitions in sorted(measurements, key=lambda of: of[1]):
            if tokens + self._new_tokens(kind) <= self.config.max_position_embeddings:
                yield self.timed_cell(kind, tokens, repetitions)

    def counted_cell(self, lengths: list[int]) -> Cell:
        """The cell of :meth:`counted`."""
        inputs = {"what": "counted", **self.inputs, "lengths": lengths}
        return Cell(inputs, partial(self.counted, lengths), {"kind": "counted"})

    def timed_cell(self, kind: str, tokens: int, repetitions: int) -> Cell:
        """The cell of one measurement at one length."""
        inputs = {"what": kind, **self.inputs, "tokens": tokens, "repetitions": repetitions}
        inputs |= {"device": device_name(), "hardware": hardware()}
        inputs["threads"] = torch.get_num_threads()
        if self._new_tokens(kind):
            inputs["steps"] = self.steps
        compute = partial(or_failed, self.measure, kind, tokens, repetitions)
        return Cell(inputs, compute, {"kind": kind, "length": tokens})

    def _new_tokens(self, kind: str) -> int:
        """Number of tokens that a measurement writes."""
        return self.steps if kind in ("decode", "llama_cpp") else 0

    def measure(self, kind: str, tokens: int, repetitions: int) -> Result:
        """The result of one cell.

        ``tokens`` are read (prefill, split), or are in the cache before the first new one (decode).
        """
        measure = getattr(self, kind)
        models = {}
        for name, variant in self.variants.items():
            if name in TIMED[kind]:
                models[name] = variant.model
        runs = len(models) * repetitions
        if repetitions > 1:  # each begins with one that is forgotten
            runs += len(models)
        with tqdm(total=runs, desc=f"{kind}, {tokens} tokens", unit="run", leave=False) as bar:
            return measure(models, tokens, repetitions, bar)

    def prefill(self, models: Models, tokens: int, repetitions: int, bar: tqdm) -> Result:
        """Seconds of a prefill, its counted operations, and the cache that one before it fills."""
        ids = self._ids(tokens)
        rows = []
        # What a process takes once shall not be in the first time.
        timing.prefill(models[DENSE], ids[:, :16])
        prefills = {name: partial(timing.prefill, model, ids) for name, model in models.items()}
        if repetitions > 1:
            for name, prefill in prefills.items():
                held = timing.cache_bytes(prefill())
                rows.append({"quantity": "cache_bytes", "variant": name, "value": held})
                bar.update()
        timed = self._timed(prefills)
        seconds = timing.interleaved(timed, repetitions, bar, warm_up=False)
        for pairs, causal in PAIRS.items():
            for name, (_, plan, fold_output, tail_only) in self.variants.items():
                flops = prefill_flops(self.config, plan, tokens, causal, fold_output, tail_only)
                rows.append({"quantity": f"flops {pairs}", "variant": name, "value": flops})
        return {"rows": _seconds_rows(seconds) + rows}

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
        for run, seconds_of_parts in _repetitions(measured):
            for part, seconds in seconds_of_parts.items():
                rows.append({"quantity": "seconds", **run, "value": seconds, "part": part})
        return {"rows": rows}

    def decode(self, models: Models, tokens: int, repetitions: int, bar: tqdm) -> Result:
        """Seconds of some new tokens after ``tokens`` others."""
        ids = self._ids(self.steps)
        caches = {name: timing.filled_cache(model, tokens) for name, model in models.items()}

        def run(name: str) -> torch.Tensor:
            return timing.decode(models[name], continued(caches[name]), ids)

        timed = self._timed({name: partial(run, name) for name in models})
        seconds = timing.interleaved(timed, repetitions, bar, repetitions > 1)
        return {"rows": _seconds_rows(seconds)}

    def llama_cpp(self, models: Models, tokens: int, repetitions: int, bar: tqdm) -> Result:
        """Speeds of llama.cpp, with weights in float16.

        Tokens a second, of a prompt and of what is written after it.
        """
        from harp_lib.export.gguf import save_gguf  # here, because it needs a package of its own

        prompt = self._ids(tokens)[0].tolist()
        timed = {}
        rows = []
        with TemporaryDirectory() as folder:
            for name, model in models.items():
                file = Path(folder, name)
                plan = self.variants[name].plan
                if plan is None:
                    save_gguf(model, self.context.tokenizer, file)
                else:  # a file is written of a model whose config says how it was pruned
                    pruned = surgery.apply_plan(copy.deepcopy(models[DENSE]), plan)
                    save_gguf(pruned, self.context.tokenizer, file)
                engine = LlamaCpp(file, tokens + self.steps + 1)
                timed[name] = partial(engine.write, prompt, self.steps)
            answers = timing.interleaved(timed, repetitions, bar, repetitions > 1)
        for run, answer in _repetitions(answers):
            for quantity in ("prompt", "generation"):
                rows.append({"quantity": quantity, **run, "value": answer[quantity]})
        return {"rows": rows}

    def counted(self, lengths: list[int]) -> Result:
        """Operations of each part of the dense model by length.

        The curve goes up to where attention takes more than the FFNs.
        """
        width = self.config.intermediate_size
        longest = max([*lengths, 4 * width])
        curve = np.geomspace(min(lengths, default=width) / 2, longest, POINTS).round()
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
        generator = torch.Generator().manual_seed(self.context.seed)
        ids = torch.randint(self.config.vocab_size, (1, tokens), generator=generator)
        return ids.to(self.device)


def _repetitions(measured: Mapping[str, Sequence[Any]]) -> Iterator[tuple[Row, Any]]:
    """The columns of each run of each variant, and what was measured in it."""
    for name, repeated in measured.items():
        for repetition, measurement in enumerate(repeated):
            yield {"variant": name, "repetition": repetition}, measurement


def _seconds_rows(measured: Mapping[str, Sequence[float]]) -> list[Row]:
    return [
        {"quantity": "seconds", **run, "value": seconds} for run, seconds in _repetitions(measured)
    ]
