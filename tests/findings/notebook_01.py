"""Numbers of the findings in notebook 01."""

import numpy as np
import pandas as pd

from findings.stored import CODER, GEMMA, MODELS, SMOLLM, finding
from harp_lib.report import data


def observed(model: str, quantity: str) -> pd.DataFrame:
    """What was observed in the trained model as it read texts, but for the repeated tokens."""
    rows = data.tidy("small", "similarity", quantity)
    return rows.query("model == @model and method == 'trained' and task != 'repeated-tokens'")


def by_layer(rows: pd.DataFrame) -> np.ndarray:
    """The values of rows with one number a layer, from the bottom up, ``(layers,)``."""
    rows = rows.sort_values("layer")
    assert rows["layer"].tolist() == list(range(len(rows)))
    return rows["value"].to_numpy(float)


def rank_of_the_top_layer(model: str) -> tuple[int, int]:
    """Rank of the top layer by block influence (1: the highest), and the number of layers."""
    rows = observed(model, "block influence")
    assert len(set(rows.groupby("layer").size())) == 1  # all documents of both texts
    means = rows.groupby("layer")["value"].mean().to_numpy()  # (layers,)
    return int((means > means[-1]).sum()) + 1, len(means)


@finding(
    "01_similarity.ipynb",
    "The top layer ranks {} of {} on SmolLM2 135M, where it turns its tokens nearly most, but {}"
    " of {} on Gemma-3 270M and {} of {} on Qwen-Coder 0.5B.",
)
def top_layers():
    numbers = []
    for model in MODELS:
        numbers += rank_of_the_top_layer(model)
    return numbers


def factors(model: str) -> np.ndarray:
    """The factor v of Lemma 2 in every layer, ``(layers,)``."""
    return by_layer(observed(model, "v"))


@finding(
    "01_similarity.ipynb",
    "On Gemma-3 270M v is below 1 in {} of {} layers, and on the text that v was computed on "
    "d(H) shrinks in none of them, because Lemma 2 is about post-norm blocks, which these models"
    " do not have.",
)
def small_factors():
    v = factors(GEMMA)
    distances = observed(GEMMA, "distance")
    read = distances.query("corpus == 'wikitext' and document == 0")  # what v is computed on
    change = np.diff(by_layer(read))  # (layers,)
    assert not (change[v < 1] < 0).any()
    return (v < 1).sum(), len(v)


@finding(
    "01_similarity.ipynb",
    "On SmolLM2 135M and Qwen-Coder 0.5B v is above {} in every layer, so the lemma says nothing"
    " there.",
)
def large_factors():
    least = min(factors(SMOLLM).min(), factors(CODER).min())
    return [int(least // 100 * 100)]


@finding(
    "01_similarity.ipynb",
    "No trained head is nearly uniform (an entropy of {} or more) on any of the three models.",
)
def uniform_heads():
    bound = 0.95
    shares = {}
    for model in MODELS:
        for method in ("trained", "random"):
            heads = data.tidy("small", "similarity", "entropy")
            heads = heads.query(
                "model == @model and method == @method and task != 'repeated-tokens'"
            )
            means = heads.groupby(["layer", "head"])["value"].mean()
            shares[model, method] = (means >= bound).mean()
    assert [shares[model, "trained"] for model in MODELS] == [0, 0, 0]
    assert [shares[model, "random"] for model in MODELS] == [1, 0, 1]  # all, none on Gemma, all
    return [bound]
