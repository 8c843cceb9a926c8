"""What the paper's Section 2.2 says about real models, judged on the cells of notebook 01."""

from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from harp_lib.claims import COLUMNS, HIGH, NEARLY_ONE, documents, layer_trend, rho_text, trend_verdict, verdict
from harp_lib.experiments.similarity_study import (
    RANDOM,
    TRAINED,
    bound_frame,
    contraction_frame,
    growth_frame,
    head_frame,
    layer_frame,
)
from harp_lib.measure.corpora import TITLES
from harp_lib.measure.models import display_name
from harp_lib.results import Cells
from harp_lib.statistics import mean_interval

Row = tuple[str, str, str, str, str, str]  # as COLUMNS

RISES = "tokens are more alike in higher layers"
NEAR_ONE = "Sim(H) comes near 1 in high layers"
FALLS = "BI decreases with the layer index"
FALLS_ALONE = "BI of the attention alone decreases with the layer index"
LOSES = "a layer changes its tokens less without queries and keys, the higher it is"
ACROSS = "layers whose tokens are more alike have more uniform heads"
WITHIN = "a head is more uniform on texts whose tokens are more alike"
UNIFORM = "attention is nearly uniform in high layers"
ANY_TOKENS = "attention must bring any tokens together: λ < 1"
ITS_TOKENS = "attention brings the tokens that it sees together"
BOUND = "v < 1, so that d_M shrinks from layer to layer"
SHRINKS = "d_M shrinks from layer to layer"
EQUAL_UNIFORM = "equal rows make attention uniform"
EQUAL_SUPERFLUOUS = "equal rows make attention superfluous"


def similarity_claims(cells: Cells) -> pd.DataFrame:
    """Every claim of Section 2.2: statement, what was checked, on what, evidence, verdict, counterexample."""
    layers, heads, factors, bounds = layer_frame(cells), head_frame(cells), contraction_frame(cells), bound_frame(cells)
    growth, rows = growth_frame(layers), []
    for model in layers["model"].unique():
        for corpus in layers["corpus"].unique():
            chosen = (
                frame[(frame["model"] == model) & (frame["corpus"] == corpus)] for frame in (layers, heads, growth)
            )
            part, attention, grown = (frame[frame["method"] == TRAINED] for frame in chosen)
            twin = layers[(layers["model"] == model) & (layers["corpus"] == corpus) & (layers["method"] == RANDOM)]
            on = f"{display_name(model)}, {TITLES[corpus]}, {documents(part)}"
            rows += _layer_rows(on, part, twin)
            rows += _head_rows(on, attention)
            rows += _distance_rows(on, part, attention, grown)
        rows += _bound_rows(
            model,
            factors[factors["model"] == model],
            bounds[bounds["model"] == model],
            growth_frame(layers[(layers["model"] == model) & (layers["method"] == TRAINED)], "distance"),
        )
        rows += _repeated_rows(model, cells[model, TRAINED, "repeated-tokens"]["result"])
    return pd.DataFrame(rows, columns=COLUMNS)


def _means(layers: pd.DataFrame, quantity: str) -> pd.Series:
    return layers[layers["quantity"] == quantity].groupby("layer")["value"].mean()


def _layer_rows(on: str, own: pd.DataFrame, twin: pd.DataFrame) -> list[Row]:
    rising = layer_trend(own, "similarity")
    evidence = f"{rho_text(rising)}; with random weights {layer_trend(twin, 'similarity').value:+.2f}"
    rows = [("Section 2.2", RISES, on, evidence, trend_verdict(rising, rising=True), "")]

    sims, read, twins = _means(own, "similarity"), _means(own, "projected similarity"), _means(twin, "similarity")
    high = read.index >= HIGH * len(read)
    highest, highest_read = sims[read.index[high]].max(), read[high].max()
    evidence = (
        f"Sim of what enters the top fifth is {highest:.2f} at most, {highest_read:.2f} after the layers' norms; of "
        f"any layer {sims.max():.2f} and {read.max():.2f}; with random weights {twins.max():.2f}"
    )
    near = "holds" if max(highest, highest_read) >= NEARLY_ONE else "does not hold"
    rows.append(("Section 2.2", NEAR_ONE, on, evidence, near, ""))

    for quantity, claim in (("block influence", FALLS), ("attention influence", FALLS_ALONE)):
        falling, influence = layer_trend(own, quantity), _means(own, quantity)
        ranks = influence.rank(ascending=False).astype(int)
        evidence = (
            f"{rho_text(falling)}; the top layer ranks {ranks.iloc[-1]} of {len(ranks)}, layer {influence.idxmin()} is "
            f"lowest; with random weights {layer_trend(twin, quantity).value:+.2f}"
        )
        rows.append(("Section 2.2, BI", claim, on, evidence, trend_verdict(falling, rising=False), ""))

    falling, lost = layer_trend(own, "branch gap"), _means(own, "branch gap")
    evidence = (
        f"‖A − B‖/‖H‖ from {lost.min():.2f} to {lost.max():.2f}, mean of the top fifth {lost[high].mean():.2f}, of the "
        f"others {lost[~high].mean():.2f}; {rho_text(falling)}"
    )
    rows.append(("Section 2.2", LOSES, on, evidence, trend_verdict(falling, rising=False), ""))
    return rows


def _head_rows(on: str, heads: pd.DataFrame) -> list[Row]:
    means = heads.groupby(["layer", "head"])[["similarity", "entropy"]].mean()
    by_layer = means.groupby("layer").mean()
    across = spearmanr(by_layer["similarity"], by_layer["entropy"])
    evidence = (
        f"rank correlation of Sim after the norm and mean entropy {across.statistic:+.2f} over {len(by_layer)} layers, "
        f"p = {across.pvalue:.2f}"
    )
    clear = across.pvalue < 0.05
    said = "too small to tell" if not clear else "holds" if across.statistic > 0 else "does not hold"
    rows = [("Theorem 1", ACROSS, on, evidence, said, "")]

    if heads["document"].nunique() > 2:
        within = heads.groupby(["layer", "head"])[["similarity", "entropy"]].apply(
            lambda rows: spearmanr(rows["similarity"], rows["entropy"]).statistic
        )
        association = mean_interval(within.groupby("layer").mean())  # heads of a layer share its tokens
        positive = f"positive in {(within > 0).mean():.0%} of {len(within)} heads"
        evidence = f"{rho_text(association, 'Sim over documents')}, {positive}"
        rows.append(("Theorem 1", WITHIN, on, evidence, verdict(association), ""))

    entropy = means["entropy"]
    layer = entropy.index.get_level_values("layer")
    top = entropy[layer >= HIGH * (layer.max() + 1)]
    evidence = (
        f"normalised entropy of the top fifth's heads {top.median():.2f} (median), from {top.min():.2f} to "
        f"{top.max():.2f}; of all heads {entropy.median():.2f}"
    )
    near = "holds" if top.median() >= NEARLY_ONE else "does not hold"
    return [*rows, ("Section 2.2", UNIFORM, on, evidence, near, "")]


def _distance_rows(on: str, own: pd.DataFrame, heads: pd.DataFrame, growth: pd.DataFrame) -> list[Row]:
    factors = heads.groupby(["layer", "head"])["contraction"].mean()
    below = (factors < 1).mean()
    evidence = f"d_M(ÂV)/d_M(V) from {factors.min():.2f} to {factors.max():.2f}, below 1 in {below:.0%} of the heads"
    rows = [("Lemma 1, its use", ITS_TOKENS, on, evidence, _share(below, "of the heads"), "")]

    means = growth.groupby("layer")["growth"].mean()
    shrinking = (means < 1).mean()
    relative = _means(own, "distance without first") / _means(own, "norm without first")
    evidence = (
        f"without the first token it shrinks in {(means < 1).sum()} of {len(means)} layers, by a factor from "
        f"{means.min():.2f} to {means.max():.2f}; relative to ‖H‖ it goes from {relative.iloc[0]:.2f} to "
        f"{relative.iloc[-1]:.2f}"
    )
    return [*rows, ("Lemma 2, its use", SHRINKS, on, evidence, _share(shrinking, "of the layers"), "")]


def _bound_rows(model: str, factors: pd.DataFrame, bounds: pd.DataFrame, growth: pd.DataFrame) -> list[Row]:
    means = factors.groupby(["corpus", "layer", "head"])["factor"].mean()
    number = factors.groupby("corpus")["document"].nunique().sum()
    evidence = f"√λ below 1 in {(means < 1).sum()} of {len(means)} heads and corpora, median {means.median():.1f}"
    said = _share((means < 1).mean(), "of the heads")
    rows = [("Lemma 1, its use", ANY_TOKENS, f"{display_name(model)}, {number} documents", evidence, said, "")]
    evidence = f"v from {bounds['v'].min():.1e} to {bounds['v'].max():.1e}"
    said = "does not hold: v ≥ 1 in every layer"
    if small := (bounds["v"] < 1).sum():
        # The bound was computed on the first text of the first corpus; all its tokens count.
        read = growth[(growth["corpus"] == growth["corpus"].iloc[0]) & (growth["document"] == 0)]
        grown = (bounds.set_index("layer")["v"] < 1) & (read.set_index("layer")["growth"] >= 1)
        evidence += f"; below 1 in {small} of {len(bounds)} layers, and in {grown.sum()} of these d_M grows"
        said = f"does not hold: d_M grows in {grown.sum()} of the {small} layers with v < 1"
        said = said if grown.any() else f"holds in {small} of {len(bounds)} layers"
    return [*rows, ("Lemma 2, its use", BOUND, f"{display_name(model)}, 1 document", evidence, said, "")]


def _repeated_rows(model: str, result: dict[str, Any]) -> list[Row]:
    entropies = np.array(result["entropy"])  # (tokens, layers, heads)
    half = entropies.shape[1] // 2
    lower, upper = ((part >= NEARLY_ONE).mean() for part in (entropies[:, :half], entropies[:, half:]))
    on = f"{display_name(model)}, {len(entropies)} texts that repeat one token"
    evidence = (
        f"Sim at least {np.min(result['similarity']):.4f}; normalised entropy {entropies.min():.2f} at least, and at "
        f"least {NEARLY_ONE} in {lower:.0%} of the heads of the lower half of the layers, {upper:.0%} of the upper half"
    )
    said = _share((entropies >= NEARLY_ONE).mean(), "of the heads")
    rows = [("Theorem 1", EQUAL_UNIFORM, on, evidence, said, "")]
    largest = max(result["logit difference"])
    evidence = f"logits change by {largest:.0e} standard deviations without any query and key"
    exact = "holds" if largest < 0.01 else "does not hold"
    return [*rows, ("Theorem 1, in its place", EQUAL_SUPERFLUOUS, on, evidence, exact, "")]


def _share(share: float, whole: str) -> str:
    if share < 0.05:
        return "does not hold"
    return "holds" if share == 1 else f"holds for {'only ' if share < 0.5 else ''}{share:.0%} {whole}"


def conclude(claims: pd.DataFrame) -> str:
    """Whether the chain of Section 2.2 holds on these models: its premise, its conclusion, and what is left."""

    def held(checked: str) -> str:
        verdicts = claims.loc[claims["what was checked"] == checked, "verdict"]
        return f"{(verdicts == 'holds').sum()} of {len(verdicts)}"

    return (
        "**In short**, over models and texts. The premise of Theorem 1, a Sim near 1 in high layers (here: at least "
        f"{NEARLY_ONE} in the top fifth), is met in {held(NEAR_ONE)} cases, and its conclusion, nearly uniform "
        f"attention there (a median normalised entropy of at least {NEARLY_ONE}), in {held(UNIFORM)}. BI decreases "
        f"with the layer index in {held(FALLS)}, and layers change their tokens less without queries and keys, the "
        f"higher they are, in {held(LOSES)}. High layers may still be the right ones to prune; where the premise is "
        "not met, this theory is not the reason."
    )
