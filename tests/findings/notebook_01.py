"""Numbers of the findings in notebook 01."""

import numpy as np
import pandas as pd
import torch

from findings.stored import (
    ALL_MODELS,
    CODER,
    GEMMA,
    LARGER,
    SMOLLM,
    finding,
    verdict_on,
)
from harp_lib import config
from harp_lib.report import data, figures_layers
from harp_lib.report.claims.findings import Outcome
from harp_lib.report.claims.judging import load_claims

PAGE = "01_similarity.ipynb"


def observed(model: str, quantity: str) -> pd.DataFrame:
    """What was observed in the trained model as it read texts, but for the repeated tokens."""
    rows = data.tidy("small", "similarity", quantity)
    return rows.query("model == @model and method == 'trained' and task != 'repeated-tokens'")


def by_layer(rows: pd.DataFrame) -> np.ndarray:
    """The values of rows with one number a layer, from the bottom up, ``(layers,)``."""
    rows = rows.sort_values("layer")
    assert rows["layer"].tolist() == list(range(len(rows)))
    return rows["value"].to_numpy(float)


def means_by_layer(model: str, quantity: str) -> pd.Series:
    """Mean over all documents of both texts, by layer."""
    rows = observed(model, quantity)
    documents = rows.drop_duplicates(["corpus", "document"])
    assert len(documents) == 8
    return rows.groupby("layer")["value"].mean()


@finding(
    PAGE,
    "In the residual stream tokens are nearly parallel on Gemma-3 270M only: Sim reaches {:.2f}, "
    "against {:.2f} on SmolLM2 135M, {:.2f} on Qwen-Coder 0.5B (*the coder*) and {:.2f} on "
    "Qwen-Coder 1.5B (*the 1.5B*) (means of {} documents of two texts).",
)
def similarity_of_the_stream():
    peaks = {model: means_by_layer(model, "similarity").max() for model in ALL_MODELS}
    assert peaks[GEMMA] > 0.95 > max(peaks[SMOLLM], peaks[CODER], peaks[LARGER])
    return peaks[GEMMA], peaks[SMOLLM], peaks[CODER], peaks[LARGER], 8


@finding(
    PAGE,
    "After the norm Sim is {:.2f} to {:.2f} on Gemma, {:.2f} to {:.2f} on SmolLM2, {:.2f} to "
    "{:.2f} on the coder and {:.2f} to {:.2f} on the 1.5B.",
)
def similarity_of_what_heads_read():
    numbers = []
    for model in (GEMMA, SMOLLM, CODER, LARGER):
        means = means_by_layer(model, "projected similarity")
        assert means.max() < 0.95
        numbers += [means.min(), means.max()]
    return numbers


@finding(
    PAGE,
    "Random heads become uniform as Sim goes to 1 if all rows have the same length and heads see "
    "no positions: the entropy is {:.2f} then. With rotary positions it is {:.2f}, with rows of "
    "different length {:.2f}, and with both {:.2f} (means of {} random heads).",
)
def random_heads():
    sweep = data.table("small", "theory", "uniformity-sweep")
    sweep = sweep[sweep["spread"] == sweep["spread"].min()]
    means = sweep.groupby(["equal lengths", "rotary"])["entropy"].mean()
    order = [(True, False), (True, True), (False, False), (False, True)]
    return [*(means[case] for case in order), sweep["draw"].nunique()]


def first_layers_of_the_verdict(claim: str) -> dict[str, int]:
    """From which layer on a claim about the top fifth of the layers is tested, by model."""
    (entry,) = [entry for entry in load_claims() if entry["id"] == claim]
    depth = entry["test"]["of_documents"]["depth"]
    first = {}
    for model in ALL_MODELS:
        num_layers = entropies(model)["layer"].max() + 1
        first[model] = int(np.ceil(depth * num_layers))
    return first


def at_the_top_by_text(model: str, quantity: str, statistic: str) -> pd.Series:
    """A statistic of the top fifth of the layers in each document, its mean by text."""
    rows = observed(model, quantity)
    first = first_layers_of_the_verdict("uniform-attention")[model]
    last = entropies(model)["layer"].max()  # without what leaves the last layer
    rows = rows[rows["layer"].between(first, last)]
    of_documents = rows.groupby(["corpus", "document"])["value"].agg(statistic)
    return of_documents.groupby("corpus").mean()


@finding(
    PAGE,
    "The verdict below takes the highest Sim of the top fifth of the layers on the text where it "
    "is lower. On every model this is in the stream, and the numbers are lower than those above "
    "({:.2f} against {:.2f} on Gemma).",
)
def similarity_of_the_verdict():
    outcomes = verdict_on("alike-near-one")
    peaks = {model: means_by_layer(model, "similarity").max() for model in ALL_MODELS}
    for model in ALL_MODELS:
        of_texts = at_the_top_by_text(model, "similarity", "max")
        assert np.isclose(outcomes.loc[model, "value"], of_texts.min())
        assert outcomes.loc[model, "value"] < peaks[model]
    return outcomes.loc[GEMMA, "value"], peaks[GEMMA]


@finding(
    PAGE,
    "Sim is lower after the norm than in the stream in {} of {} layers of Gemma, {} of {} of the "
    "coder and {} of {} of the 1.5B. A gain can also do the opposite: on SmolLM2 Sim is lower "
    "after the norm in only {} of {} layers, and higher in the other {}.",
)
def layers_whose_norm_lowers_similarity():
    numbers = []
    for model in (GEMMA, CODER, LARGER, SMOLLM):
        read = means_by_layer(model, "projected similarity")
        stream = means_by_layer(model, "similarity")[read.index]
        numbers += [(read < stream).sum(), len(read)]
    return [*numbers, (read > stream).sum()]  # SmolLM2 is the last one


def entropies(model: str) -> pd.DataFrame:
    """Mean entropy of every trained head. Columns: model, layer, head, value, is_pruned."""
    heads = observed(model, "entropy").groupby(["layer", "head"])["value"].mean().reset_index()
    heads = heads.assign(model=model)
    return heads.assign(is_pruned=figures_layers.is_pruned(config.load_profile("small"), heads))


@finding(
    PAGE,
    "In the layers that HARP prunes, about the top fifth, the most uniform head has an entropy of "
    "{:.2f} on SmolLM2, {:.2f} on Gemma, {:.2f} on the coder and {:.2f} on the 1.5B. The most "
    "uniform heads are further down: {:.2f} in layer {} of SmolLM2, {:.2f} in layer {} of Gemma, "
    "{:.2f} in layer {} of the coder and {:.2f} in layer {} of the 1.5B.",
)
def most_uniform_heads():
    at_the_top = []
    anywhere = []
    for model in ALL_MODELS:
        heads = entropies(model)
        at_the_top.append(heads[heads["is_pruned"]]["value"].max())
        most = heads.loc[heads["value"].idxmax()]
        assert not most["is_pruned"]
        anywhere += [most["value"], int(most["layer"])]
    return at_the_top + anywhere


@finding(
    PAGE,
    "The median head of the pruned layers is less uniform than the median head below them on "
    "SmolLM2 ({:.2f} against {:.2f}), on Gemma ({:.2f} against {:.2f}) and on the 1.5B ({:.2f} "
    "against {:.2f}). It is more uniform only on the coder ({:.2f} against {:.2f}).",
)
def median_heads():
    numbers = []
    for model in (SMOLLM, GEMMA, LARGER, CODER):
        medians = entropies(model).groupby("is_pruned")["value"].median()
        assert (medians[True] < medians[False]) == (model != CODER)
        numbers += [medians[True], medians[False]]
    return numbers


@finding(
    PAGE,
    "So the paper's reason does not hold here: high layers are not those where attention is nearly "
    "uniform, not even on the coder, where the most uniform head of the pruned layers has {:.2f}.",
)
def most_uniform_head_of_the_coder():
    heads = entropies(CODER)
    return [heads[heads["is_pruned"]]["value"].max()]


@finding(
    PAGE,
    "The verdict has {:.2f}, {:.2f}, {:.2f} and {:.2f}: the median head of each document, averaged "
    "over the {} documents of the text where it is lower. It takes the top fifth of the layers, "
    "from layers {}, {}, {} and {} on, which on Gemma, the coder and the 1.5B is one layer fewer "
    "than HARP prunes.",
)
def median_heads_of_the_verdict():
    outcomes = verdict_on("uniform-attention")
    first_layers = first_layers_of_the_verdict("uniform-attention")
    for model in ALL_MODELS:
        of_texts = at_the_top_by_text(model, "entropy", "median")
        assert np.isclose(outcomes.loc[model, "value"], of_texts.min())
        heads = entropies(model)
        first_pruned = heads[heads["is_pruned"]]["layer"].min()
        assert first_layers[model] - first_pruned == (0 if model == SMOLLM else 1)
    (documents,) = set(outcomes["n"])
    values = [outcomes.loc[model, "value"] for model in ALL_MODELS]
    return [*values, documents, *first_layers.values()]


def with_repeated_tokens(quantity: str) -> pd.DataFrame:
    """What was observed as the trained models read one token, repeated."""
    return data.tidy("small", "similarity", quantity).dropna(subset="token")


@finding(
    PAGE,
    "With Sim = 1 heads need not be uniform: over the four models the entropy of a head goes from "
    "{:.2f} to {:.2f} on a repeated token. And yet on SmolLM2, Gemma and the coder, which compute "
    "in float32, the logits change by less than {} of their standard deviation when queries and "
    "keys are removed, which is rounding.",
)
def repeated_tokens():
    entropy = with_repeated_tokens("entropy")
    assert set(entropy["model"]) == set(ALL_MODELS)
    differences = with_repeated_tokens("logit difference")
    in_float32 = differences[differences["model"] != LARGER]
    assert set(in_float32["model"]) == {SMOLLM, GEMMA, CODER}
    assert (in_float32["value"] < 0.0001).all()
    return entropy["value"].min(), entropy["value"].max(), "0.0001"


@finding(
    PAGE,
    "On the 1.5B they do not change at all, but this test is coarser: bfloat16 keeps a number to "
    "one part in {:.0f} and hides so small a change.",
)
def repeated_tokens_in_bfloat16():
    profile = config.load_profile("small")
    assert profile["dtype_of"] == {LARGER: "bfloat16"}
    differences = with_repeated_tokens("logit difference")
    of_the_larger = differences[differences["model"] == LARGER]["value"]
    assert len(of_the_larger) > 0
    assert (of_the_larger == 0).all()
    return [2 / torch.finfo(torch.bfloat16).eps]


@finding(
    PAGE,
    "Removing queries and keys changes the residual stream least in layer {} of SmolLM2 (by "
    "{:.0f} % of its norm), layer {} of Gemma ({:.0f} %), layer {} of the coder ({:.0f} %) and "
    "layer {} of the 1.5B ({:.0f} %), and on both texts it is the same layer. Document by document "
    "it is that layer in {} of 8, {} of 8, {} of 8 and {} of 8. On SmolLM2 and on the 1.5B it is "
    "the top layer, on Gemma and on the coder it is not. HARP prunes from layers {}, {}, {} and {} "
    "on.",
)
def least_changed_layers():
    layers_and_changes = []
    times = []
    for model in ALL_MODELS:
        means = means_by_layer(model, "branch gap")
        least = means.idxmin()
        layers_and_changes += [least, 100 * means[least]]
        rows = observed(model, "branch gap")
        for _, of_text in rows.groupby("corpus"):
            assert of_text.groupby("layer")["value"].mean().idxmin() == least
        documents = rows.groupby(["corpus", "document"])
        times.append(
            sum(part.set_index("layer")["value"].idxmin() == least for _, part in documents)
        )
        assert (least == means.index.max()) == (model in (SMOLLM, LARGER))
    alphas = data.tidy("small", "norm_change", "alpha").groupby("model")["layer"].min()
    return [*layers_and_changes, *times, *(int(alphas[model]) for model in ALL_MODELS)]


@finding(
    PAGE,
    "The values themselves change a lot everywhere: ‖ÂV − V‖ is at least {:.0f} % of ‖V‖ in "
    "every layer of every model.",
)
def changed_values():
    return [100 * min(means_by_layer(model, "value gap").min() for model in ALL_MODELS)]


def rank_of_the_top_layer(model: str, quantity: str = "block influence") -> tuple[int, int]:
    """Rank of the top layer by block influence (1: the highest), and the number of layers."""
    rows = observed(model, quantity)
    assert len(set(rows.groupby("layer").size())) == 1  # all documents of both texts
    means = rows.groupby("layer")["value"].mean().to_numpy()  # (layers,)
    return int((means > means[-1]).sum()) + 1, len(means)


@finding(
    PAGE,
    "The top layer ranks {} of {} on SmolLM2, where it turns its tokens nearly most, and {} of {} "
    "on the 1.5B, but {} of {} on Gemma and {} of {} on the coder (means over both texts).",
)
def top_layers():
    numbers = []
    for model in (SMOLLM, LARGER, GEMMA, CODER):
        rank, num_layers = rank_of_the_top_layer(model)
        assert (rank < num_layers / 2) == (model in (SMOLLM, LARGER))
        numbers += [rank, num_layers]
    return numbers


@finding(
    PAGE,
    "And yet on SmolLM2 and on the 1.5B the top layer is the one where removing queries and keys "
    "changes the residual stream least. These are two different things: BI is about the whole "
    "layer with its FFN, and that change is about its queries and keys only. By the BI of its "
    "attention alone the top layer ranks {} of {} on SmolLM2 and {} of {} on the 1.5B.",
)
def top_layers_by_attention_alone():
    numbers = []
    for model in (SMOLLM, LARGER):
        changes = means_by_layer(model, "branch gap")
        assert changes.idxmin() == changes.index.max()
        rank, num_layers = rank_of_the_top_layer(model, "attention influence")
        assert rank > num_layers / 2
        numbers += [rank, num_layers]
    return numbers


def factors(model: str) -> np.ndarray:
    """The factor v of Lemma 2 in every layer, ``(layers,)``."""
    return by_layer(observed(model, "v"))


@finding(
    PAGE,
    "On Gemma v is below 1 in {} of {} layers, and on the text that v was computed on "
    "d(H) shrinks in none of them, because Lemma 2 is about post-norm blocks, which normalise the "
    "sum of residual stream and branch.",
)
def small_factors():
    v = factors(GEMMA)
    distances = observed(GEMMA, "distance")
    read = distances.query("corpus == 'wikitext' and document == 0")  # what v is computed on
    change = np.diff(by_layer(read))  # (layers,)
    assert not (change[v < 1] < 0).any()
    return (v < 1).sum(), len(v)


@finding(
    PAGE,
    "On SmolLM2, the coder and the 1.5B v is above {} in every layer, so the lemma says nothing "
    "there.",
)
def large_factors():
    least = min(factors(model).min() for model in (SMOLLM, CODER, LARGER))
    return [int(least // 100 * 100)]


@finding(
    PAGE,
    "On real text no trained head is nearly uniform (an entropy of {} or more) on any of the four "
    "models.",
)
def uniform_heads():
    bound = 0.95
    shares = {}
    for model in ALL_MODELS:
        for method in ("trained", "random"):
            heads = data.tidy("small", "similarity", "entropy")
            heads = heads.query(
                "model == @model and method == @method and task != 'repeated-tokens'"
            )
            means = heads.groupby(["layer", "head"])["value"].mean()
            shares[model, method] = (means >= bound).mean()
    for model in ALL_MODELS:
        assert shares[model, "trained"] == 0
        assert shares[model, "random"] == (0 if model == GEMMA else 1)  # none, or all
    return [bound]


@finding(
    PAGE,
    "Over all layers BI falls with the layer index on the coder (ρ {} [{}, {}]). On Gemma and on "
    "the 1.5B it falls too, but ρ = {} [{}, {}] and {} [{}, {}] are not clearly below the {} that "
    "we ask for, and on SmolLM2 BI does not fall (ρ {} [{}, {}]). All four ρ are on WikiText-2.",
)
def trend_of_block_influence():
    outcomes = verdict_on("block-influence")
    assert outcomes.loc[CODER, "outcome"] == Outcome.REPRODUCED
    for model in (GEMMA, LARGER):
        assert outcomes.loc[model, "outcome"] == Outcome.INCONCLUSIVE
        assert outcomes.loc[model, "high"] < 0
    assert outcomes.loc[SMOLLM, "outcome"] == Outcome.NOT
    assert (outcomes["about"] == "on WikiText-2").all()
    trends = {}
    for model in ALL_MODELS:
        ends = outcomes.loc[model, ["value", "low", "high"]]
        trends[model] = [f"{end:+.2f}".replace("-", "−") for end in ends]
    goal = f"{outcomes.loc[GEMMA, 'goal']:.1f}".replace("-", "−")
    return [*trends[CODER], *trends[GEMMA], *trends[LARGER], goal, *trends[SMOLLM]]
