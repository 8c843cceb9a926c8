"""The experiment of notebook 06: other layers than the top ones, alpha left at 1, and one layer at a time."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from harp_lib.experiments.alpha_study import HELD_OUT, AlphaStudy, Text
from harp_lib.experiments.baseline_study import CALIBRATION
from harp_lib.experiments.score_study import ScoreStudy
from harp_lib.measure.benchmarks import DISCRIMINATIVE_TASKS
from harp_lib.measure.corpora import calibration_blocks, excerpt, load_corpus, rolling_windows
from harp_lib.measure.likelihood import Batch, head_nll, make_batches, total_nll
from harp_lib.methods.alpha_search import ReusedPrefix
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.layer_selection import SCORED, layer_scores, lowest_layers, select_layers
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_value_only
from harp_lib.results import ResultStore

EXPERIMENT = "ablations"
STRATEGIES = ("bottom", "hessian", "similarity", "top")  # the paper's, in its order; all of them at alpha = 1
SHARED = ("dense", "harp")  # whose scores notebook 05 has too
GAIN, SINGLE = "gain", "single-layer"  # the cells of one document each
SINGLE_ALPHAS = (1.0, 0.0)  # queries and keys removed; the whole attention removed


class AblationStudy:
    """All cells of one model but its scores, which :func:`score` adds.

    Parameters
    ----------
    alpha : AlphaStudy
        The same model's search, which is read if notebook 03 has made it, and its texts.
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
        self.tokenizer, self.seed, self.settings = tokenizer, seed, profile["ablations"]
        self.total, self.corpus = len(decoder_layers(self.model)), profile["corpora"][0]
        harp = PruningPlan.value_only(self.total, alpha.search([self.corpus])[self.corpus]["alphas"])
        self.searched = harp.alphas
        self.plans: dict[str, PruningPlan | None] = {"dense": None, "harp": harp}
        self.calibration_text = load_corpus(self.corpus, CALIBRATION, profile["datasets"])
        self.gain_text, self.single_text = (self._part(*self.settings[name]) for name in ("gain", "single_layer"))

    def _part(self, documents: int | None, tokens: int | None) -> Text:
        """The beginning of the first held-out documents."""
        whole = self.alpha.texts[self.corpus, HELD_OUT].corpus
        part = excerpt(whole, self.tokenizer, documents, tokens)
        context = self.alpha.inputs["context"]
        return Text(part, [rolling_windows(self.tokenizer, [text], context) for text in part.texts])

    def select(self) -> dict[str, PruningPlan | None]:
        """The layers of each strategy, and as many plans: these layers value-only at alpha = 1."""
        count = self.alpha.num_layers
        for strategy in tqdm(STRATEGIES, desc="layer selection", unit="strategy"):

            def compute(partial, strategy=strategy):
                if strategy not in SCORED:
                    return {"layers": select_layers(strategy, self.model, None, count), "scores": None}
                blocks = calibration_blocks(
                    self.calibration_text, self.tokenizer, *self.settings["calibration"], seed=self.seed
                )
                scores = layer_scores(strategy, self.model, blocks)
                return {"layers": lowest_layers(scores, count), "scores": scores}

            inputs = self.alpha.inputs | {"num_layers": count, "total": self.total}
            if strategy in SCORED:
                text = self.calibration_text
                inputs |= {"calibration": self.settings["calibration"], "seed": self.seed}
                inputs |= {"corpus": text.name, "split": text.split, "source": text.source, "sha256": text.sha256}
            layers = self.store.cell(self.name, strategy, "selection", inputs, compute)["layers"]
            self.plans[strategy] = PruningPlan.value_only(self.total, dict.fromkeys(layers, 1.0))
        return self.plans

    def gains(self) -> None:
        """Every plan of :func:`attribution`, read on held-out documents; only the pruned layers are run again."""
        plans, bottom = attribution(self.searched), min(self.searched)
        for index, document in enumerate(tqdm(self.gain_text.documents, desc="gain by layer", unit="document")):

            def compute(partial, document=document):
                batches = make_batches(document)
                prefix = ReusedPrefix(self.model, batches, [bottom], {}, None, progress=False)
                nll = {name: prefix.nll(bottom, alphas) for name, alphas in plans.items()}
                return {"nll": {"dense": total_nll(self.model, batches)} | nll, "tokens": _scored(batches)}

            alphas = {str(layer): alpha for layer, alpha in self.searched.items()}
            inputs = self._inputs(self.gain_text, index) | {"alphas": alphas}
            self.store.cell(self.name, GAIN, f"document-{index:02d}", inputs, compute)

    def single_layers(self) -> None:
        """One layer value-only and all others dense, for every layer, read on held-out documents."""
        documents = self.single_text.documents
        for index, document in enumerate(tqdm(documents, desc="one layer at a time", unit="document")):

            def compute(partial, document=document):
                batches = make_batches(document)
                result = {"dense": total_nll(self.model, batches), "tokens": _scored(batches)}
                return result | self._one_by_one(LayerStream(self.model, document), batches)

            inputs = self._inputs(self.single_text, index) | {"alphas": SINGLE_ALPHAS, "num_layers": len(self.searched)}
            self.store.cell(self.name, SINGLE, f"document-{index:02d}", inputs, compute)

    @torch.no_grad()
    def _one_by_one(self, stream: LayerStream, batches: list[Batch]) -> dict[str, list[float]]:
        """Negative log-likelihood by alpha and layer. What enters a layer is computed once, going up."""
        nll: dict[str, list[float]] = {f"{alpha:g}": [] for alpha in SINGLE_ALPHAS}
        for layer in range(self.total):
            entering = stream.entering(layer)
            for alpha in SINGLE_ALPHAS:
                hidden = entering  # of each batch, (B, N, d)
                with temporarily_value_only(self.model, {layer: alpha}):
                    for above in range(layer, self.total):
                        hidden = list(stream.leaving(above, hidden))
                norm = self.model.get_decoder().norm
                pairs = zip(hidden, batches, strict=True)
                nll[f"{alpha:g}"].append(sum(head_nll(self.model, norm(states), batch) for states, batch in pairs))
        return nll

    def _inputs(self, text: Text, index: int) -> dict[str, Any]:
        corpus = text.corpus
        where = {"corpus": corpus.name, "split": corpus.split, "source": corpus.source, "sha256": corpus.sha256}
        return self.alpha.inputs | where | {"document": index}


def _scored(batches: list[Batch]) -> int:
    return sum(batch.num_scored for batch in batches)


def attribution(searched: Mapping[int, float]) -> dict[str, dict[int, float]]:
    """Plans that tell which searched alpha brings how much: alpha by layer, for all of the pruned layers.

    ``top-<k>`` has alpha searched in the k highest layers and 1 below them, ``only-<layer>`` in this layer alone, and
    ``without-<layer>`` in all layers but this one.
    """
    order = sorted(searched, reverse=True)
    ones = dict.fromkeys(order, 1.0)
    plans = {f"top-{k}": ones | {layer: searched[layer] for layer in order[:k]} for k in range(len(order) + 1)}
    plans |= {f"only-{layer}": ones | {layer: searched[layer]} for layer in order}
    return plans | {f"without-{layer}": {**searched, layer: 1.0} for layer in order}


def score(
    name: str,
    digest: str,
    plans: Mapping[str, PruningPlan | None],
    profile: dict[str, Any],
    store: ResultStore,
    main_store: ResultStore,
    seed: int = 0,
) -> None:
    """Score every plan: ``top`` on all tasks, the other strategies on the discriminative ones, as the paper does.

    Parameters
    ----------
    name, digest : str
        As for :class:`ScoreStudy`.
    plans : mapping
        Of :meth:`AblationStudy.select`.
    profile : dict
        From :func:`harp_lib.profiles.load_profile`.
    store : ResultStore
        Takes all scores, those of the dense model and of HARP as copies, so that it is complete.
    main_store : ResultStore
        Notebook 05's, which has the same scores of the dense model and of HARP, or gets them here.
    seed : int
        Chooses the few-shot examples.
    """
    main = ScoreStudy(name, digest, profile, main_store, seed)
    own = ScoreStudy(name, digest, profile, store, seed, main.work)
    main.evaluate({method: plans[method] for method in SHARED})
    own.evaluate({"top": plans["top"]})
    others = {strategy: plans[strategy] for strategy in STRATEGIES if strategy != "top"}
    own.evaluate(others, [benchmark.name for benchmark in DISCRIMINATIVE_TASKS])
    for method in SHARED:
        for task in profile["evaluation"]["tasks"]:
            found = main_store.cells[name, method, task]
            inputs = main.inputs(plans[method], task)
            store.cell(name, method, task, inputs, lambda partial, found=found: found["result"], found["seconds"])


def text_table(study: AblationStudy) -> pd.DataFrame:
    """What each text is used for, and how long it is."""
    samples, length = study.settings["calibration"]
    rows = [(study.calibration_text, "calibration", "the metrics Hessian and Similarity", samples, samples * length)]
    uses = {"gain by layer": study.gain_text, "one layer at a time": study.single_text}
    rows += [(text.corpus, "held out", use, len(text.documents), sum(text.tokens)) for use, text in uses.items()]
    columns = ["text", "role", "use", "documents or samples", "tokens", "SHA-256"]
    return pd.DataFrame(((text.title, *numbers, text.sha256[:12]) for text, *numbers in rows), columns=columns)
