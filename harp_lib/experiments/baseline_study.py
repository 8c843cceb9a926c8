"""The experiment of notebook 04: tune every baseline's layer range, plan all methods at one budget, read and count."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm
from transformers import GenerationConfig, PreTrainedTokenizerBase

from harp_lib.accounting import head_ratio, kv_bytes_per_token, parameters, removed_fraction
from harp_lib.baseline_frames import TITLE, WITHOUT_BIAS
from harp_lib.experiments.alpha_study import HELD_OUT, SEARCHED, AlphaStudy
from harp_lib.accounting import decode_flops, prefill_flops
from harp_lib.measure.corpora import calibration_blocks, load_corpus
from harp_lib.measure.likelihood import evaluating, make_batches, total_nll
from harp_lib.measure.wheels import quiet
from harp_lib.methods import BASELINES, METHODS, make_plan, planner
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.layers import num_groups
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.results import ResultStore

EXPERIMENT = "baselines"
CALIBRATION_SIZE = (128, 128)  # samples, tokens of each, of a baseline that the profile does not name
CALIBRATION = "train"  # the split that no alpha is searched on and no perplexity is read on


class BaselineStudy:
    """All cells of one model.

    Parameters
    ----------
    alpha : AlphaStudy
        The same model's search: its texts, and HARP's alpha, which is read if notebook 03 has found it.
    tokenizer : PreTrainedTokenizerBase
    profile : dict
        From :func:`harp_lib.profiles.load_profile`.
    store : ResultStore
        Takes the cells.
    seed : int
        Chooses the calibration samples.
    """

    def __init__(
        self,
        alpha: AlphaStudy,
        tokenizer: PreTrainedTokenizerBase,
        profile: dict[str, Any],
        store: ResultStore,
        seed: int = 0,
    ) -> None:
        self.alpha, self.name, self.model, self.store = alpha, alpha.name, alpha.model, store
        self.tokenizer, self.seed = tokenizer, seed
        reading = [name for name in BASELINES if name != "mag-sp"]
        sizes = dict.fromkeys(reading, CALIBRATION_SIZE) | profile["baselines"]["calibration"]
        self.settings = profile["baselines"] | {"calibration": sizes}
        found = decoder_layers(self.model)
        self.num_layers, self.groups_per_layer = len(found), num_groups(found[0].self_attn)
        self.kv_groups = alpha.num_layers * self.groups_per_layer
        self.corpus = profile["corpora"][0]
        self.calibration_text = load_corpus(self.corpus, CALIBRATION, profile["datasets"])
        self.tuning_text = alpha.texts[self.corpus, SEARCHED]
        self.tuning_documents = self.tuning_text.documents[: self.settings["tuning_documents"]]
        self.read_on = {(self.corpus, SEARCHED), *((corpus, HELD_OUT) for corpus in profile["corpora"])}
        self.planners: dict[str, Callable] = {}
        self.seconds: dict[str, float] = {}  # that a method's statistics took
        self.ranges: dict[str, range] = {}
        self.plans: dict[str, PruningPlan | None] = {}

    def windows(self, method: str) -> list[range]:
        """The layer ranges among which a method is tuned, shorter ones first, each kind from the bottom up."""
        if method == "flap":
            counts = self.settings["flap_layers"].get(self.name) or flap_counts(
                self.num_layers, self.groups_per_layer, self.kv_groups
            )
        else:
            each = self.settings["groups_per_layer"].get(self.name) or uniform_parts(
                self.num_layers, self.groups_per_layer, self.kv_groups
            )
            counts = [self.kv_groups // groups for groups in each]
        step = self.settings["window_step"]
        return [window for count in sorted(counts) for window in sliding_windows(self.num_layers, count, step)]

    def tune(self) -> dict[str, range]:
        """Perplexity of every method with every range, on the first documents of the searched text; the best range."""
        work = [(method, window) for method in BASELINES for window in self.windows(method)]
        perplexities: dict[str, dict[range, float]] = {}
        for method, window in tqdm(work, desc="layer ranges", unit="range"):

            def compute(partial, method=method, window=window):
                return self.read(self.planner_of(method)(self.kv_groups, window), self.tuning_documents)

            inputs = self._inputs(method) | {"layers": [window.start, window.stop]}
            inputs |= {"tuning_sha256": self.tuning_text.corpus.sha256, "documents": len(self.tuning_documents)}
            task = f"range-{window.start:02d}-{window.stop:02d}"
            result = self.store.cell(self.name, method, task, inputs, compute)
            perplexities.setdefault(method, {})[window] = sum(result["nll"]) / sum(result["tokens"])
        for method, found in perplexities.items():
            self.ranges[method] = min(found, key=lambda window: (math.isnan(found[window]), found[window]))
        return self.ranges

    def planner_of(self, method: str) -> Callable[[int, range], PruningPlan]:
        """Plans of a baseline for any range, from statistics that are computed once."""
        if method not in self.planners:
            begin = time.perf_counter()
            self.planners[method] = planner(method, self.model, self.calibration(method))
            self.seconds[method] = time.perf_counter() - begin
        return self.planners[method]

    def calibration(self, method: str) -> torch.Tensor | None:
        """The calibration samples of a method, (samples, tokens), or None where it needs none."""
        wanted = self.settings["calibration"].get(method)
        return wanted and calibration_blocks(self.calibration_text, self.tokenizer, *wanted, seed=self.seed)

    def plan(self) -> dict[str, PruningPlan | None]:
        """The plan of each method with its tuned range, and what the pruned model costs; None is the dense model."""
        search = self.alpha.search([self.corpus])[self.corpus]
        alphas = search["alphas"]

        def make(method: str) -> PruningPlan | None:
            if method in BASELINES:
                return self.planner_of(method)(self.kv_groups, self.ranges[method])
            options = {"kv_groups": self.kv_groups, "alphas": alphas}
            return None if method == "dense" else make_plan(method, self.model, self.calibration(method), **options)

        for method in tqdm(("dense", *METHODS), desc="plans", unit="method"):

            def compute(partial, method=method):
                if method in BASELINES:
                    self.planner_of(method)  # whose seconds are counted already
                begin = time.perf_counter()
                plan = make(method)
                seconds = time.perf_counter() - begin + self.seconds.get(method, 0)
                if method.startswith("harp"):
                    seconds += search["seconds"]
                samples, length = self.settings["calibration"].get(method, (0, 0))
                searched = search["tokens"] if method.startswith("harp") else 0
                read = {"calibration_tokens": samples * length, "searched_tokens": searched, "seconds": seconds}
                return {"plan": plan and plan.to_dict(), **read, **self.costs(plan)}

            inputs = self._inputs(method) | {"cost_tokens": self.settings["cost_tokens"]}
            if method in BASELINES:
                inputs["layers"] = [self.ranges[method].start, self.ranges[method].stop]
            elif method != "dense":
                inputs["alphas"] = alphas
            stored = self.store.cell(self.name, method, "plan", inputs, compute)["plan"]
            self.plans[method] = stored and PruningPlan.from_dict(stored)
        return self.plans

    def costs(self, plan: PruningPlan | None) -> dict[str, Any]:
        """Parameters, bytes of cache and floating-point operations of the model under ``plan``, counted."""
        config, tokens = self.model.config, self.settings["cost_tokens"]
        nothing = plan or PruningPlan(self.num_layers, {})
        return {
            "parameters": parameters(config, plan),
            "removed_fraction": removed_fraction(config, nothing),
            "head_ratio": head_ratio(config, nothing),
            "kv_bytes_per_token": kv_bytes_per_token(config, plan, self.model.dtype),
            "prefill_flops": prefill_flops(config, plan, tokens, causal=True),
            "decode_flops": decode_flops(config, plan, tokens),
            "tokens": tokens,
            "groups_per_layer": self.groups_per_layer,
            "ffn_channels": config.intermediate_size,
        }

    def evaluate(self) -> None:
        """Every plan, read document by document: on the searched text, on held-out text, and on another corpus."""
        texts = [text for (corpus, split), text in self.alpha.texts.items() if (corpus, split) in self.read_on]
        plans = self.plans | {WITHOUT_BIAS: uncompensated(self.plans["flap"])}
        work = [(*plan, text) for plan in plans.items() for text in texts]
        for method, plan, text in tqdm(work, desc="perplexities", unit="cell"):
            corpus = text.corpus
            inputs = self.alpha.inputs | {"plan": plan and plan.digest, "corpus": corpus.name, "split": corpus.split}
            inputs |= {"source": corpus.source, "sha256": corpus.sha256}

            def compute(partial, plan=plan, text=text):
                return self.read(plan, text.documents)

            self.store.cell(self.name, method, f"{corpus.name}-{corpus.split}", inputs, compute)

    def write(self) -> None:
        """What the model writes under every plan, greedily, after the beginning of each held-out document."""
        length = self.settings["written_tokens"]
        text = self.alpha.texts[self.corpus, HELD_OUT]
        prompts = [document[0].ids[:length] for document in text.documents if len(document[0].ids) >= length]
        if not prompts:
            raise ValueError(f"{text.corpus.title} has no held-out document of {length} tokens to continue")
        for method, plan in tqdm(self.plans.items(), desc="writing", unit="method"):

            def compute(partial, plan=plan):
                written = self.continuations(plan, torch.stack(prompts))
                return {"ids": written.tolist(), "texts": self.tokenizer.batch_decode(written)}

            inputs = self.alpha.inputs | {"plan": plan and plan.digest, "corpus": self.corpus, "split": HELD_OUT}
            inputs |= {"source": text.corpus.source, "sha256": text.corpus.sha256, "written_tokens": length}
            self.store.cell(self.name, method, "writing", inputs, compute)

    def continuations(self, plan: PruningPlan | None, prompts: torch.Tensor) -> torch.Tensor:
        """Greedy continuations of ``prompts`` (B, N), each as long as they are: (B, N)."""
        length = prompts.shape[1]
        how = GenerationConfig(max_new_tokens=length, min_new_tokens=length, do_sample=False, pad_token_id=0)
        prompts = prompts.to(self.model.device)
        with self.pruned(plan), evaluating(self.model), quiet():
            whole = self.model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=how)
        return whole[:, length:].cpu()

    def pruned(self, plan: PruningPlan | None) -> AbstractContextManager[None]:
        """The context in which the model is as ``plan`` has it; None is the dense model."""
        return temporarily_pruned(self.model, plan or PruningPlan(self.num_layers, {}))

    def read(self, plan: PruningPlan | None, documents: list[list]) -> dict[str, list]:
        """Negative log-likelihood and predicted tokens of each document under ``plan``."""
        with self.pruned(plan):
            nll = [total_nll(self.model, make_batches(document)) for document in documents]
        return {"nll": nll, "tokens": [sum(window.scored for window in document) for document in documents]}

    def _inputs(self, method: str) -> dict[str, Any]:
        inputs = self.alpha.inputs | {"kv_groups": self.kv_groups, "corpus": self.corpus}
        if (wanted := self.settings["calibration"].get(method)) is not None:
            inputs |= {"calibration": wanted, "calibration_split": CALIBRATION, "seed": self.seed}
            inputs |= {"source": self.calibration_text.source, "sha256": self.calibration_text.sha256}
        return inputs


def uncompensated(plan: PruningPlan) -> PruningPlan:
    """The plan without the means that make up for what it removes."""
    layers = {layer: replace(lost, group_means=None, channel_means=None) for layer, lost in plan.layers.items()}
    return replace(plan, layers=layers)


def text_table(study: BaselineStudy) -> pd.DataFrame:
    """What each text is used for, and how long it is."""
    by_size: dict[tuple[int, int], list[str]] = {}
    for method, size in study.settings["calibration"].items():
        by_size.setdefault(tuple(size), []).append(TITLE[method])
    rows = [
        (study.calibration_text, f"calibration of {', '.join(methods)}", samples, samples * length)
        for (samples, length), methods in by_size.items()
    ]
    tuned = sum(window.scored for document in study.tuning_documents for window in document)
    rows.append((study.tuning_text.corpus, "tuning of layer ranges", len(study.tuning_documents), tuned))
    for corpus, split in sorted(study.read_on, key=lambda key: (key[0] != study.corpus, key[1] != SEARCHED)):
        text = study.alpha.texts[corpus, split]
        use = "HARP's search for α, and reading" if split == SEARCHED else "reading"
        rows.append((text.corpus, use, len(text.documents), sum(text.tokens)))
    columns = ["text", "role", "use", "documents or samples", "tokens", "SHA-256"]
    roles = {CALIBRATION: "calibration", SEARCHED: "searched", HELD_OUT: "held out"}
    return pd.DataFrame(
        ((text.title, roles[text.split], *numbers, text.sha256[:12]) for text, *numbers in rows), columns=columns
    )


def sliding_windows(num_layers: int, count: int, step: int) -> list[range]:
    """Ranges of ``count`` layers from the bottom up, every ``step``-th one, and the top layers in any case."""
    top = num_layers - count
    return [range(start, start + count) for start in sorted({*range(0, top + 1, step), top})]


def uniform_parts(num_layers: int, groups_per_layer: int, kv_groups: int) -> list[int]:
    """The two smallest numbers of groups that every layer of some range can lose to lose ``kv_groups`` in all."""
    parts = [
        each for each in range(1, groups_per_layer + 1) if kv_groups % each == 0 and kv_groups // each <= num_layers
    ]
    return parts[:2]


def flap_counts(num_layers: int, groups_per_layer: int, kv_groups: int) -> list[int]:
    """From a bit more than a third of the layers to all, in six steps, as the paper tunes LLaMA3.1-8B (12 to 32)."""
    counts = {round(num_layers * eighths / 8) for eighths in range(3, 9)}
    return sorted(count for count in counts if count * groups_per_layer >= kv_groups)
