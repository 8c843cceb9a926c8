"""The experiment of notebook 03: search alpha on two corpora, read it on both, time it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.measure.corpora import SPLITS, TITLES, Corpus, Window, count_words, excerpt, load_corpus, rolling_windows
from harp_lib.measure.likelihood import make_batches, total_nll
from harp_lib.measure.models import display_name
from harp_lib.methods.alpha_search import search_alphas
from harp_lib.methods.alpha_search import model_digest
from harp_lib.profiles import num_pruned_layers
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.surgery import temporarily_value_only
from harp_lib.results import Cells, ResultStore, device_name
from harp_lib.statistics import paired_change, perplexity_estimate

EXPERIMENT = "alpha_search"
SEARCHED, HELD_OUT = "test", "validation"  # the paper searches on WikiText's test pages


class Text(NamedTuple):
    """A corpus as one model sees it: the windows of each document."""

    corpus: Corpus
    documents: list[list[Window]]

    @property
    def windows(self) -> list[Window]:
        return [window for document in self.documents for window in document]

    @property
    def tokens(self) -> list[int]:
        """Predicted tokens of each document."""
        return [sum(window.scored for window in document) for document in self.documents]


class AlphaStudy:
    """All cells of one model.

    Parameters
    ----------
    name : str
        The model as :func:`harp_lib.load_model` knows it.
    model, tokenizer
        A dense model and its tokenizer; the model is as before after each step.
    profile : dict
        From :func:`harp_lib.profiles.load_profile`.
    store : ResultStore
        Takes the cells.
    """

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        profile: dict[str, Any],
        store: ResultStore,
    ) -> None:
        self.name, self.model, self.store, self.settings = name, model, store, profile["alpha_search"]
        self.num_layers = num_pruned_layers(profile, name, len(decoder_layers(model)))
        self.inputs = {"model": name, "digest": model_digest(model), "dtype": str(model.dtype)}
        self.inputs["context"] = min(self.settings["context"], model.config.max_position_embeddings)
        self.texts: dict[tuple[str, str], Text] = {}
        for corpus in profile["corpora"]:
            for split in (SEARCHED, HELD_OUT):
                self.texts[corpus, split] = self._text(load_corpus(corpus, split, profile["datasets"]), tokenizer)
        self.found: dict[str, dict[str, Any]] = {}

    def _text(self, corpus: Corpus, tokenizer: PreTrainedTokenizerBase) -> Text:
        part = excerpt(corpus, tokenizer, self.settings["documents"], self.settings["tokens"])
        return Text(part, [rolling_windows(tokenizer, [text], self.inputs["context"]) for text in part.texts])

    def search(self, corpora: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
        """Algorithm 1 on each corpus, or on some: corpus → alphas, perplexity curves, seconds and passes."""
        for corpus in corpora or dict.fromkeys(corpus for corpus, _ in self.texts):
            text = self.texts[corpus, SEARCHED]

            def compute(partial, text=text):
                found = search_alphas(
                    self.model,
                    text.windows,
                    self.num_layers,
                    resume=partial,
                    cache_device=self.settings["cache_device"],
                )
                return vars(found) | {"tokens": sum(text.tokens)}

            inputs = self._inputs(text) | {"num_layers": self.num_layers}
            self.found[corpus] = self.store.cell(self.name, "harp", f"search-{corpus}", inputs, compute)
        return self.found

    def perplexities(self) -> None:
        """Dense, alpha = 1, alpha = 0 and each searched alpha, read on every text, document by document."""
        top = range(len(decoder_layers(self.model)) - 1, -1, -1)[: self.num_layers]
        plans = {"dense": {}, "alpha-1": dict.fromkeys(top, 1.0), "alpha-0": dict.fromkeys(top, 0.0)}
        plans |= {
            f"searched-on-{corpus}": dict(zip(top, cell["alphas"], strict=True)) for corpus, cell in self.found.items()
        }
        work = [(*plan, text) for plan in plans.items() for text in self.texts.values()]
        for plan, alphas, text in tqdm(work, desc="perplexities", unit="cell"):

            def compute(partial, alphas=alphas, text=text):
                with temporarily_value_only(self.model, alphas):
                    nll = [total_nll(self.model, make_batches(document)) for document in text.documents]
                words = [count_words(document) for document in text.corpus.documents]
                return {"nll": nll, "tokens": text.tokens, "words": words}

            inputs = self._inputs(text) | {"alphas": {str(layer): alpha for layer, alpha in alphas.items()}}
            self.store.cell(self.name, plan, f"{text.corpus.name}-{text.corpus.split}", inputs, compute)

    def costs(self) -> None:
        """The same search with and without reused hidden states, one after the other, on a part of the first text."""
        text = next(iter(self.texts.values()))
        part = text.documents[: self.settings["literal_documents"]]

        def compute(partial):
            windows = [window for document in part for window in document]
            reused, literal = (
                search_alphas(self.model, windows, self.num_layers, reuse_prefix=r) for r in (True, False)
            )
            return {
                "reused": vars(reused),
                "literal": vars(literal),
                "tokens": sum(window.scored for window in windows),
            }

        inputs = self._inputs(text) | {"documents": len(part), "num_layers": self.num_layers, "device": device_name()}
        self.store.cell(self.name, "harp", "cost", inputs, compute)

    def _inputs(self, text: Text) -> dict[str, Any]:
        corpus = text.corpus
        return self.inputs | {
            "corpus": corpus.name,
            "split": corpus.split,
            "source": corpus.source,
            "sha256": corpus.sha256,
        }


def text_table(study: AlphaStudy) -> pd.DataFrame:
    """What the model reads: documents, tokens and words of each text."""
    use = {SEARCHED: "searched", HELD_OUT: "held out"}
    return pd.DataFrame(
        {
            "text": text.corpus.title,
            "use": use[text.corpus.split],
            "documents": len(text.documents),
            "predicted tokens": sum(text.tokens),
            "words": text.corpus.num_words,
            "SHA-256": text.corpus.sha256[:12],
        }
        for text in sorted(study.texts.values(), key=lambda text: (text.corpus.name, -SPLITS.index(text.corpus.split)))
    )


def curve_frame(cells: Cells) -> pd.DataFrame:
    """Perplexity of every candidate: model, corpus, layer, alpha, perplexity."""
    return pd.DataFrame(
        (model, task.removeprefix("search-"), int(layer), float(alpha), perplexity)
        for (model, method, task), cell in cells.items()
        if method == "harp" and task.startswith("search-")
        for layer, curve in cell["result"]["perplexities"].items()
        for alpha, perplexity in curve.items()
    ).set_axis(["model", "corpus", "layer", "alpha", "perplexity"], axis=1)


def alpha_frame(cells: Cells) -> pd.DataFrame:
    """The alphas that were found: model, corpus, layer, alpha."""
    return pd.DataFrame(
        (model, task.removeprefix("search-"), cell["result"]["num_model_layers"] - 1 - depth, alpha)
        for (model, method, task), cell in cells.items()
        if method == "harp" and task.startswith("search-")
        for depth, alpha in enumerate(cell["result"]["alphas"])
    ).set_axis(["model", "corpus", "layer", "alpha"], axis=1)


def perplexity_frame(cells: Cells) -> pd.DataFrame:
    """Perplexity of every plan on every text, with error, and its change against the alpha searched on that corpus."""
    rows = []
    for (model, plan, task), cell in cells.items():
        if "nll" in (result := cell["result"]):
            corpus, split = task.rsplit("-", 1)
            value, error = perplexity_estimate(result["nll"], result["tokens"])
            reference = cells.get((model, f"searched-on-{corpus}", task))
            change = (
                paired_change(reference["result"]["nll"], result["nll"], result["tokens"]) if reference else (None,) * 3
            )
            words = perplexity_estimate(result["nll"], result["words"]).value
            counts = (len(result["nll"]), sum(result["tokens"]))
            rows.append((model, plan, corpus, split, value, error, words, *counts, *change))
    columns = ["model", "plan", "corpus", "split", "perplexity", "error", "word perplexity", "documents", "tokens"]
    frame = pd.DataFrame(rows, columns=[*columns, "change", "low", "high"])
    order = frame.assign(
        searched=frame["split"] != SEARCHED,
        rank=[("dense", "alpha-1", "alpha-0").index(p) if not p.startswith("searched") else 3 for p in frame["plan"]],
        other=[plan != f"searched-on-{corpus}" for plan, corpus in zip(frame["plan"], frame["corpus"], strict=True)],
    )
    return frame.loc[order.sort_values(["model", "corpus", "searched", "rank", "other"]).index].reset_index(drop=True)


def cost_frame(cells: Cells) -> pd.DataFrame:
    """What searches cost: measured seconds and counted layer passes.

    On a part of one text with and without reused hidden states, in one run; on the whole texts with them.
    """
    rows = []
    for (model, _, task), cell in cells.items():
        result = cell["result"]
        if task == "cost":
            row = {"text": f"part of {TITLES[cell['inputs']['corpus']]}"}
            for way in ("reused", "literal"):
                row |= {f"seconds, {way}": result[way]["seconds"], f"passes, {way}": result[way]["layer_passes"]}
            row["same alphas"] = result["reused"]["alphas"] == result["literal"]["alphas"]
        elif task.startswith("search-"):
            row = {"text": TITLES[task.removeprefix("search-")]}
            row |= {"seconds, reused": result["seconds"], "passes, reused": result["layer_passes"]}
        else:
            continue
        rows.append({"model": display_name(model), "tokens": result["tokens"], **row})
    columns = ["model", "text", "tokens", "seconds, reused", "seconds, literal", "passes, reused", "passes, literal"]
    frame = pd.DataFrame(rows, columns=[*columns, "same alphas"])
    frame["times faster"] = frame["seconds, literal"] / frame["seconds, reused"]
    frame["times fewer passes"] = frame["passes, literal"] / frame["passes, reused"]
    return frame
