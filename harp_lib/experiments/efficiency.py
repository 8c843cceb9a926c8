"""Notebook 08: time and memory of a dense model and of its pruned variants, measured in turn."""

import copy
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
from harp_lib.accounting import count_groups, paper_configs, prefill_flops, prefill_layers
from harp_lib.evaluation import timing
from harp_lib.experiments.job import Job, or_failed
from harp_lib.models import gguf
from harp_lib.models.load import random_model
from harp_lib.names import PAPER_MODELS
from harp_lib.pruning import remote, surgery
from harp_lib.pruning.architecture import check_plan, decoder_layers
from harp_lib.pruning.layers import repeats_values
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.results import device_name

DENSE, HARP, TAIL, FOLDED, THINNED = "dense", "harp", "harp-tail", "harp-folded", "thinned"
PAIRS = {
    "full": False,
    "causal": True,
}  # query-key pairs that are counted: all, or those that are visible
Models = dict[str, PreTrainedModel]  # by the name of a variant
LETTERS = "root ::= [ -~]+"  # a grammar that llama.cpp holds text to
POINTS = 33  # of each counted curve
# of all keys and values for each new token: read and written for a longer copy, read by attention
CACHE_MOVES = 3


class Variant(NamedTuple):
    """A model that is ready to be timed, and how it was pruned; no plan: dense."""

    model: PreTrainedModel
    plan: PruningPlan | None = None
    fold_output: bool = False
    tail_only: bool = (
        False  # a prefill sends its last position alone through the pruned layers at the top
    )


def make_variants(model: PreTrainedModel, plan: PruningPlan) -> dict[str, Variant]:
    """The dense model, HARP's plan carried out in three ways, and as many groups taken from all
    layers evenly.

    All share the weights of ``model``: what a variant has of its own are sliced and folded
    projections. Alpha is left out. In a pruned model it is in the weights and takes no time; only
    where it is 0 does the rest of the attention go too, and that it does here. A variant that a
    model cannot have is left out.
    """
    plans, thinned = {HARP: plan, TAIL: plan}, thinned_plan(model.config, plan)
    if any(
        alpha and repeats_values(decoder_layers(model)[layer].self_attn)
        for layer, alpha in plan.alphas.items()
    ):
        plans[FOLDED] = plan
    with suppress(ValueError):  # as of a norm over all heads
        check_plan(model, thinned)
        plans[THINNED] = thinned
    variants, weights = {DENSE: Variant(model)}, (*model.parameters(), *model.buffers())
    for name, carried_out in plans.items():
        twin = copy.deepcopy(model, {id(tensor): tensor for tensor in weights})
        surgery.swap_modules(twin, carried_out, fold_output=name == FOLDED)
        if name == TAIL:
            twin.__class__ = remote.pruned_class(
                type(twin)
            )  # whose forward pass it is; the others run every position
        variants[name] = Variant(twin, carried_out, name == FOLDED, name == TAIL)
    return variants


def thinned_plan(config: PreTrainedConfig, plan: PruningPlan) -> PruningPlan:
    """The plan that takes as many groups as ``plan`` takes, as evenly from all layers as whole
    groups allow.
    """
    total, kept = np.array(count_groups(config, plan)).T  # of each layer
    upto = total.cumsum() * (total - kept).sum() // total.sum()  # groups that are gone at its top
    lost = enumerate(np.diff(upto, prepend=0).tolist())
    layers = {
        layer: LayerPlan(removed_groups=tuple(range(count))) for layer, count in lost if count
    }
    return PruningPlan(plan.num_layers, layers, THINNED)


def random_shape(
    name: str, profile: dict[str, Any], seed: int
) -> tuple[PreTrainedModel, PruningPlan]:
    """A model of the paper with random weights, on which no time depends, and HARP's plan of the
    published alphas.
    """
    config = paper_configs()[name]
    whole = config.num_hidden_layers
    layers = config.num_hidden_layers = profile["efficiency"]["layers"] or whole  # the first ones
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    printed = pd.read_csv(paths.PAPER / "alpha_search.csv").query(
        "model == @name and task == 'wikitext'"
    )
    alphas = printed.sort_values("layer", ascending=False)["value"].tolist()
    alphas = alphas[: max(1, round(len(alphas) * layers / whole))]  # for the same share of layers
    return random_model(config, profile["dtype"], seed), PruningPlan.value_only(layers, alphas)


def efficiency(job: Job) -> None:
    """Count, then measure at every length that the model can read; what fails, as for want of
    memory, says so.
    """
    if job.name in PAPER_MODELS:
        model, plan = random_shape(job.name, job.profile, job.seed)
        inputs = {
            "model": job.name,
            "digest": f"random, {plan.num_layers} layers",
            "dtype": str(model.dtype),
        }
    else:
        model, inputs = job.model, job.inputs
        plan = PruningPlan.value_only(job.num_layers, job.alphas(job.corpora[0]))
    bench, settings = Bench(make_variants(model, plan), job), job.profile["efficiency"]
    plans = {name: variant.plan and variant.plan.digest for name, variant in bench.variants.items()}
    inputs = inputs | {"seed": job.seed, "plans": plans}
    often, decoding = settings["prefill"], settings["decode"]
    wanted = [("prefill", tokens, often[tokens]) for tokens in often]
    wanted += [("split", tokens, often[tokens]) for tokens in settings["split"]]
    wanted += [("decode", tokens, decoding["repetitions"]) for tokens in decoding["contexts"]]
    lengths = sorted({tokens for _, tokens, _ in wanted})
    job.cell("all", "counted", inputs | {"lengths": lengths}, bench.counted, lengths)
    inputs |= {"device": device_name(), "threads": torch.get_num_threads()}
    with suppress(ValueError, ImportError):  # a model that llama.cpp cannot run, or no llama.cpp
        gguf.check_gguf(model)
        import_module("xllamacpp")
        wanted += [("llama_cpp", tokens, times) for tokens, times in settings["llama_cpp"].items()]
    for kind, tokens, repetitions in sorted(wanted, key=lambda each: each[1]):
        steps = {"steps": decoding["steps"]} if kind in ("decode", "llama_cpp") else {}
        if tokens + steps.get("steps", 0) <= model.config.max_position_embeddings:
            depends = inputs | {"tokens": tokens, "repetitions": repetitions} | steps
            job.cell(
                "all",
                f"{kind}-{tokens}",
                depends,
                or_failed,
                bench.measure,
                kind,
                tokens,
                repetitions,
            )


class Bench:
    """The variants of one model, and what is measured and counted of them."""

    def __init__(self, variants: dict[str, Variant], job: Job) -> None:
        self.variants, self.job = variants, job
        self.config, self.device = variants[DENSE].model.config, variants[DENSE].model.device
        self.steps = job.profile["efficiency"]["decode"]["steps"]

    def measure(self, kind: str, tokens: int, repetitions: int) -> dict[str, Any]:
        """One cell: ``tokens`` are read (prefill, split), or are in the cache before the first new
        one (decode).
        """
        every = {name: variant.model for name, variant in self.variants.items()}
        left_out = {"prefill": (), "decode": (TAIL,)}.get(
            kind, (TAIL, FOLDED, THINNED)
        )  # TAIL decodes as HARP does
        models = {name: model for name, model in every.items() if name not in left_out}
        runs = len(models) * (
            repetitions + (repetitions > 1)
        )  # of several, each begins once before, to be forgotten
        with tqdm(total=runs, desc=f"{kind}, {tokens} tokens", unit="run", leave=False) as bar:
            return getattr(self, kind)(models, tokens, repetitions, bar)

    def prefill(self, models: Models, tokens: int, repetitions: int, bar: tqdm) -> dict[str, Any]:
        """Seconds of a prefill; operations of one, counted; cache and memory of another one before."""
        ids, held, peak, variants = self._ids(tokens), {}, {}, self.variants.items()
        runs = {name: partial(timing.prefill, model, ids) for name, model in models.items()}
        timing.prefill(
            models[DENSE], ids[:, :16]
        )  # what a process takes once is not in the first peak
        for name, run in runs.items() if repetitions > 1 else ():
            held[name], peak[name] = timing.peak_memory(
                lambda run=run: timing.cache_bytes(run()), self.device
            )
            bar.update()
        timed = {name: partial(timing.seconds_of, run, self.device) for name, run in runs.items()}
        seconds = timing.interleaved(timed, repetitions, bar, warm_up=False)
        flops = {
            pairs: {
                name: prefill_flops(self.config, v.plan, tokens, causal, *v[2:])
                for name, v in variants
            }
            for pairs, causal in PAIRS.items()
        }
        return {"seconds": seconds, "flops": flops, "cache_bytes": held, "peak_bytes": peak}

    def split(self, models: Models, tokens: int, repetitions: int, bar: tqdm) -> dict[str, Any]:
        """Seconds of a prefill in attention, its projections, FFN and the rest."""
        runs = {
            name: partial(timing.prefill, model, self._ids(tokens))
            for name, model in models.items()
        }
        parts = {
            name: partial(timing.module_seconds, models[name], run, self.device)
            for name, run in runs.items()
        }
        return {"seconds": timing.interleaved(parts, repetitions, bar, repetitions > 1)}

    def decode(self, models: Models, tokens: int, repetitions: int, bar: tqdm) -> dict[str, Any]:
        """Seconds of some new tokens after ``tokens`` others, and the bytes that the first of them
        has to move.
        """
        ids = self._ids(self.steps)
        caches = {name: timing.filled_cache(model, tokens) for name, model in models.items()}
        moved = {
            name: weight_bytes(models[name]) + CACHE_MOVES * timing.cache_bytes(caches[name])
            for name in models
        }

        def run(name: str) -> torch.Tensor:
            return timing.decode(models[name], timing.continued(caches[name]), ids)

        timed = {
            name: partial(timing.seconds_of, partial(run, name), self.device) for name in models
        }
        return {
            "seconds": timing.interleaved(timed, repetitions, bar, repetitions > 1),
            "bytes": moved,
        }

    def llama_cpp(self, models: Models, tokens: int, repetitions: int, bar: tqdm) -> dict[str, Any]:
        """Tokens a second of llama.cpp, of a prompt and of what is written after it, with weights
        in float16.
        """
        prompt, timed = self._ids(tokens)[0].tolist(), {}
        with TemporaryDirectory() as folder:
            for name, model in models.items():
                gguf.save_gguf(model, self.job.tokenizer, Path(folder, name))
                timed[name] = partial(
                    LlamaCpp(Path(folder, name), tokens + self.steps + 1).write, prompt, self.steps
                )
            return {"speed": timing.interleaved(timed, repetitions, bar, repetitions > 1)}

    def counted(self, lengths: list[int]) -> dict[str, Any]:
        """Operations of each part of the dense model by length, up to where attention takes more
        than the FFNs.
        """
        width = self.config.intermediate_size
        curve = (
            np.unique(np.geomspace(lengths[0] / 2, max(*lengths, 4 * width), POINTS).round())
            .astype(int)
            .tolist()
        )
        flops = {
            pairs: [
                pd.DataFrame(prefill_layers(self.config, None, tokens, causal)).sum().to_dict()
                for tokens in curve
            ]
            for pairs, causal in PAIRS.items()
        }
        return {"intermediate_size": width, "lengths": curve, "flops": flops}

    def _ids(self, tokens: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.job.seed)
        return torch.randint(self.config.vocab_size, (1, tokens), generator=generator).to(
            self.device
        )


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of the weights that every token reads: all but an embedding that is not the output
    head.
    """
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return sum(
        weight.nbytes for weight in model.parameters() if weight is head or weight is not embedding
    )


class LlamaCpp:
    """A GGUF file in llama.cpp, on the CPU with as many threads as torch has; needs the package
    ``xllamacpp``.

    Its KV cache has room for ``context`` tokens, in ``cache_type`` ("F16", "F32"); a ``verbosity``
    of 5 logs its size.
    """

    def __init__(
        self, path: str | Path, context: int, cache_type: str = "F16", verbosity: int = -1
    ) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.verbosity = verbosity
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.n_gpu_layers = context, 1, 0
        params.fit_params = False
        params.cache_ram_mib = 0  # prompts are not kept
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = torch.get_num_threads()
        params.cache_type_k = params.cache_type_v = getattr(
            xllamacpp.ggml_type, f"GGML_TYPE_{cache_type}"
        )
        self.server = xllamacpp.Server(params)

    def write(self, prompt: str | list[int], tokens: int) -> dict[str, Any]:
        """The most likely ``tokens`` after a prompt, as ``text``; ``prompt`` and ``generation`` in
        tokens a second.
        """
        try:
            answer = self.ask(prompt, tokens, ignore_eos=True)
        except RuntimeError:  # a random model may write bytes that are no text
            answer = self.ask(prompt, tokens, grammar=LETTERS)
        timings = answer["timings"]
        speeds = {
            "prompt": timings["prompt_per_second"],
            "generation": timings["predicted_per_second"],
        }
        return {"text": answer["choices"][0]["text"], **speeds}

    def ask(self, prompt: str | list[int], tokens: int, **more: Any) -> dict[str, Any]:
        """What llama.cpp's server answers to a request for a completion."""
        asked = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "cache_prompt": False}
        return self.server.handle_completions(asked | more)
