"""What notebooks 01 and 02 share: the checks that need no model, and the texts that models read."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedTokenizerBase

from harp_lib.measure.corpora import Corpus, excerpt, load_corpus
from harp_lib.results import Cells, ResultStore
from harp_lib.theory.counterexamples import counterexample_table
from harp_lib.theory.inequalities import check_on_draws, count_one_hot
from harp_lib.theory.synthetic import norm_sweep, uniformity_sweep

EXPERIMENT = "theory"
SYNTHETIC = "synthetic"  # in the place of a model's name
SPLIT = "test"  # the text that alpha is searched on


@dataclass(frozen=True)
class Texts:
    """Texts of one corpus as token ids, each (1, N)."""

    corpus: Corpus
    ids: list[torch.Tensor]

    @property
    def tokens(self) -> int:
        return sum(text.shape[1] for text in self.ids)

    @property
    def inputs(self) -> dict[str, Any]:
        """What a cell that reads these texts records."""
        corpus = self.corpus
        described = {"corpus": corpus.name, "split": corpus.split, "source": corpus.source, "sha256": corpus.sha256}
        return described | {"documents": len(self.ids), "tokens": self.tokens}


def load_texts(profile: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> dict[str, Texts]:
    """The texts of the profile's theory section, by corpus: a beginning-of-text token and what follows it.

    There is exactly one such token, also where the tokenizer would add another of its own.
    """
    settings, texts = profile["theory"], {}
    first = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    for name in profile["corpora"]:
        corpus = excerpt(
            load_corpus(name, SPLIT, profile["datasets"]), tokenizer, settings["documents"], settings["tokens"]
        )
        ids = [tokenizer(text, add_special_tokens=False, verbose=False).input_ids for text in corpus.texts]
        texts[name] = Texts(corpus, [torch.tensor([[first, *text[: settings["tokens"]]]]) for text in ids])
    return texts


def text_table(texts: dict[str, Texts]) -> pd.DataFrame:
    """What the models read."""
    return pd.DataFrame(
        {
            "text": part.corpus.title,
            "documents": len(part.ids),
            "tokens": part.tokens,
            "SHA-256": part.corpus.sha256[:12],
        }
        for part in texts.values()
    )


def check_theory(store: ResultStore, settings: dict[str, Any], seed: int) -> Cells:
    """Everything that needs no model, as cells: draws, one-hot matrices, both sweeps, counterexamples."""
    inputs = {"seed": seed, "draws": settings["draws"]}
    sweep = inputs | {"draws": settings["sweep_draws"]}
    jobs = {
        "draws": (inputs, lambda: check_on_draws(settings["draws"], seed)),
        "one-hot": (
            {},
            lambda: pd.DataFrame(
                [(n, causal, *count_one_hot(n, causal)) for causal in (False, True) for n in (2, 3, 4, 5)],
                columns=["tokens", "causal", "one-hot", "preserve"],
            ),
        ),
        "uniformity-sweep": (sweep, lambda: uniformity_sweep(settings["sweep_draws"], seed)),
        "norm-sweep": (sweep, lambda: norm_sweep(settings["sweep_draws"], seed)),
        "counterexamples": ({}, counterexample_table),
    }
    for task, (wanted, compute) in jobs.items():
        store.cell(SYNTHETIC, "theory", task, wanted, lambda partial, compute=compute: compute().to_dict("list"))
    return store.finish()


def theory_frame(cells: Cells, task: str) -> pd.DataFrame:
    """One of the tables that :func:`check_theory` stored."""
    return pd.DataFrame(cells[SYNTHETIC, "theory", task]["result"])
