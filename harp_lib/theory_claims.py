"""What the paper says about real models in Sections 2.1 to 2.3, judged on the profile's models."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from .accounting import overtaking_length, paper_configs
from .corpora import TITLES
from .models import display_name
from .norm_study import branch_frame, ratio_frame, stream_frame
from .published import published_alphas
from .results import Cells
from .similarity_study import RANDOM, TRAINED, bound_frame, contraction_frame, head_frame, layer_frame
from .statistics import Interval, mean_interval, paired_change
from .theory_verdict import COLUMNS

NEARLY_ONE = 0.95  # from here on Sim and relative entropy count as "near 1"


def similarity_claims(cells: Cells) -> pd.DataFrame:
    """Section 2.2 on real models, from the cells of notebook 01."""
    layers, heads, factors, bounds = layer_frame(cells), head_frame(cells), contraction_frame(cells), bound_frame(cells)
    rows = []
    for model in layers["model"].unique():
        for corpus in layers["corpus"].unique():
            part = layers[(layers["model"] == model) & (layers["corpus"] == corpus)]
            own, twin = (part[part["method"] == method] for method in (TRAINED, RANDOM))
            on = f"{display_name(model)}, {TITLES[corpus]}, {_documents(own)}"
            rows += _layer_rows(on, own, twin)
            chosen = heads[(heads["model"] == model) & (heads["corpus"] == corpus) & (heads["method"] == TRAINED)]
            rows += _head_rows(on, chosen)
        rows += _bound_rows(model, factors[factors["model"] == model], bounds[bounds["model"] == model])
        rows += _repeated_rows(model, cells[model, TRAINED, "repeated-tokens"]["result"])
    return pd.DataFrame(rows, columns=COLUMNS)


def _layer_rows(on: str, own: pd.DataFrame, twin: pd.DataFrame) -> list[tuple[str, ...]]:
    rising, reference = trend(own, "similarity"), trend(twin, "similarity").value
    evidence = f"{_rho(rising)}; with random weights {reference:+.2f}"
    rows = [("Section 2.2", "tokens are more alike in higher layers", on, evidence, verdict(rising), "")]

    sims = own[own["quantity"] == "similarity"].groupby("layer")["value"].mean()
    twins = twin[twin["quantity"] == "similarity"].groupby("layer")["value"].mean()
    evidence = f"Sim is {sims.max():.2f} at most, at depth {sims.idxmax()}; with random weights {twins.max():.2f}"
    near = "holds" if sims.max() >= NEARLY_ONE else "does not hold"
    rows.append(("Section 2.2", "Sim(H) comes near 1 in high layers", on, evidence, near, ""))

    falling, reference = trend(own, "block influence"), trend(twin, "block influence").value
    influence = own[own["quantity"] == "block influence"].groupby("layer")["value"].mean()
    ranks = influence.rank(ascending=False).astype(int)
    evidence = (
        f"{_rho(falling)}; the top layer ranks {ranks.iloc[-1]} of {len(ranks)}, layer {influence.idxmin()} is lowest; "
        f"with random weights {reference:+.2f}"
    )
    rows.append(("Section 2.2, BI", "BI decreases with the layer index", on, evidence, verdict(_negated(falling)), ""))

    falling = trend(own, "value gap")
    gap = own[own["quantity"] == "value gap"].groupby("layer")["value"].mean()
    evidence = f"‖ÂV − V‖/‖V‖ from {gap.min():.2f} to {gap.max():.2f}, {_rho(falling)}"
    claim = "a layer loses less with its queries and keys, the higher it is"
    rows.append(("Theorem 1, in its place", claim, on, evidence, verdict(_negated(falling)), ""))
    return rows


def _head_rows(on: str, heads: pd.DataFrame) -> list[tuple[str, ...]]:
    rhos = [spearmanr(part["similarity"], part["entropy"]).statistic for _, part in heads.groupby("document")]
    association = mean_interval(rhos)
    number = len(heads.groupby(["layer", "head"]))
    claim = "heads attend more uniformly where their input is more alike"
    evidence = f"{_rho(association, 'Sim of the normalised input')} over {number} heads"
    rows = [("Theorem 1", claim, on, evidence, verdict(association), "")]
    means = heads.groupby(["layer", "head"])["entropy"].mean()
    top = means[means.index.get_level_values("layer") >= 0.8 * (means.index.get_level_values("layer").max() + 1)]
    evidence = (
        f"relative entropy of the top fifth's heads {top.median():.2f} (median), from {top.min():.2f} to "
        f"{top.max():.2f}; of all heads {means.median():.2f}"
    )
    near = "holds" if top.median() >= NEARLY_ONE else "does not hold"
    rows.append(("Theorem 1", "attention is nearly uniform in high layers", on, evidence, near, ""))
    return rows


def _bound_rows(model: str, factors: pd.DataFrame, bounds: pd.DataFrame) -> list[tuple[str, ...]]:
    means = factors.groupby(["corpus", "layer", "head"])["factor"].mean()
    on = f"{display_name(model)}, {factors.groupby('corpus')['document'].nunique().sum()} documents"
    below = int((means < 1).sum())
    evidence = f"√λ below 1 in {below} of {len(means)} heads and corpora, median {means.median():.1f}"
    held = "holds" if below == len(means) else "does not hold" if below < len(means) / 2 else "holds for some heads"
    rows = [("Lemma 1, its use", "attention brings tokens together", on, evidence, held, "")]
    shrinking = int((bounds["growth"] < 1).sum())
    evidence = (
        f"v from {bounds['v'].min():.1e} to {bounds['v'].max():.1e}; d_M itself shrinks in {shrinking} of "
        f"{len(bounds)} layers, by a factor from {bounds['growth'].min():.2f} to {bounds['growth'].max():.1f}"
    )
    silent = "says nothing here: no layer has v < 1"
    said = silent if bounds["v"].min() >= 1 else f"v < 1 in {(bounds['v'] < 1).sum()} of {len(bounds)} layers"
    on = f"{display_name(model)}, every layer, 1 document"
    return [*rows, ("Lemma 2, its use", "v < 1, so that d_M shrinks from layer to layer", on, evidence, said, "")]


def _repeated_rows(model: str, result: dict) -> list[tuple[str, ...]]:
    entropies = np.array(result["entropy"])  # (tokens, layers, heads)
    on = f"{display_name(model)}, {len(entropies)} texts that repeat one token"
    evidence = f"Sim at least {np.min(result['similarity']):.4f} in every layer; relative entropy of the heads "
    evidence += f"{np.median(entropies):.3f} (median), {entropies.min():.2f} at least"
    share = (entropies >= NEARLY_ONE).mean()
    said = "holds" if share == 1 else f"holds for {share:.0%} of the heads" if share > 0 else "does not hold"
    rows = [("Theorem 1", "equal rows make attention uniform", on, evidence, said, "")]
    evidence = f"logits change by {max(result['logit difference']):.0e} standard deviations without any query and key"
    exact = "holds" if max(result["logit difference"]) < 0.01 else "does not hold"
    return [*rows, ("Theorem 1, in its place", "equal rows make attention superfluous", on, evidence, exact, "")]


def norm_claims(cells: Cells) -> pd.DataFrame:
    """Sections 2.1 and 2.3, from the cells of notebook 02."""
    ratios, branches, streams = ratio_frame(cells), branch_frame(cells), stream_frame(cells)
    rows = []
    for model in ratios["model"].unique():
        for corpus in ratios["corpus"].unique():
            part = ratios[(ratios["model"] == model) & (ratios["corpus"] == corpus)]
            means = part.groupby(["layer", "head"])["ratio"].mean()
            changed = (means - 1).abs() > 0.05
            on = f"{display_name(model)}, {TITLES[corpus]}, {_documents(part)}"
            evidence = (
                f"‖ÂV‖/‖V‖ from {means.min():.2f} to {means.max():.2f}, median {means.median():.2f}; "
                f"{changed.sum()} of {len(means)} heads are more than 5 % from 1"
            )
            said = "holds" if changed.all() else f"holds for {changed.mean():.0%} of the heads"
            rows.append(
                ("Proposition 1, its use", "aggregation changes the norm of the values", on, evidence, said, "")
            )
        rows += _stream_rows(model, cells, streams[streams["model"] == model], branches[branches["model"] == model])
    return pd.DataFrame([*rows, *_overtaking_rows()], columns=COLUMNS)


def _stream_rows(model: str, cells: Cells, streams: pd.DataFrame, branches: pd.DataFrame) -> list[tuple[str, ...]]:
    top = streams[(streams["depth"] == streams["depth"].max()) & (streams["tokens"] == "without first")]
    logs = {plan: np.log(part.sort_values("document")["ratio"].to_numpy()) for plan, part in top.groupby("plan")}
    result = {plan: cells[model, plan, "reading"]["result"] for plan in logs}
    corpus = result["dense"]["corpus"]
    on = f"{display_name(model)}, {TITLES[corpus]}, {len(logs['dense'])} held-out documents"

    unscaled, searched = (mean_interval(np.expm1(logs[plan])) for plan in ("alpha-1", "searched"))
    changed = "holds" if unscaled.low * unscaled.high > 0 else "too small to tell"
    rows = [
        (
            "Section 2.3",
            "pruning changes the norm of the residual stream",
            on,
            f"{_percent(unscaled)} at the top with α = 1",
            changed,
            "",
        )
    ]
    nearer = mean_interval(np.abs(logs["alpha-1"]) - np.abs(logs["searched"]))
    evidence = f"{_percent(searched)} at the top with the searched α, {_percent(unscaled)} with α = 1"
    rows.append(("Section 2.3", "the searched α brings the norm back", on, evidence, verdict(nearer), ""))

    def change(first: str, second: str) -> Interval:
        return paired_change(result[first]["nll"], result[second]["nll"], result["dense"]["tokens"])

    won, loss, gain = (
        change("alpha-1", "searched"),
        change("searched", "norm-matching"),
        change("alpha-1", "norm-matching"),
    )
    evidence = f"perplexity {_percent(loss)} against the searched α, {_percent(gain)} against α = 1"
    if won.high >= 0:
        said = "not to be judged: the search wins nothing over α = 1"
    elif gain.high >= 0:
        said = "does not hold"
    elif loss.low > 0:
        share = np.log1p(gain.value) / np.log1p(won.value)
        said = f"in part: it wins {share:.0%} of what the search wins, in log perplexity"
    else:
        said = "holds"
    claim = "keeping the norm is what α does: the norm-matching α needs no search"
    return [*rows, ("Section 2.3", claim, on, evidence, said, "")]


def _overtaking_rows() -> list[tuple[str, ...]]:
    rows = []
    for model, config in paper_configs().items():
        full, causal = (overtaking_length(config, way) for way in (False, True))
        size = config.intermediate_size
        evidence = (
            f"at N = {full:,} = {full / size:.2f} d_ff, or {causal:,} = {causal / size:.2f} d_ff if only visible pairs "
            f"are counted; d_ff = {size:,}"
        )
        said = "holds" if full == size else "does not hold: later, because the FFN has three matrices"
        if getattr(config, "sliding_window", None) and "sliding_attention" in (
            getattr(config, "layer_types", None) or ()
        ):
            said += " and half of the layers a sliding window"
        rows.append(
            ("Section 2.1", "attention overtakes the FFN at N = d_ff", f"{model}, counted FLOPs", evidence, said, "")
        )
    return rows


def read(claims: pd.DataFrame, *checked: str) -> str:
    """The claims of these words as a list: what was measured, and the verdict."""
    lines = []
    for row in claims[claims["what was checked"].isin(checked)].to_dict("records"):
        said = row["verdict"][0].upper() + row["verdict"][1:]
        lines.append(f"- *{row['what was checked']}* ({row['on what']}): {row['evidence']}. **{said}.**")
    return "\n".join(lines)


def conclude_similarity(claims: pd.DataFrame) -> str:
    """Whether the chain of Section 2.2 holds on these models: its premise, its conclusion, and what is left."""

    def held(checked: str) -> str:
        verdicts = claims.loc[claims["what was checked"] == checked, "verdict"]
        return f"{(verdicts == 'holds').sum()} of {len(verdicts)}"

    return (
        f"**In short.** The premise of Theorem 1, a Sim near 1 in high layers (here: at least {NEARLY_ONE}), is met in "
        f"{held('Sim(H) comes near 1 in high layers')} cases, and its conclusion, nearly uniform attention there (a "
        f"median relative entropy of at least {NEARLY_ONE}), in {held('attention is nearly uniform in high layers')}. "
        f"That heads are more uniform where tokens are more alike holds in "
        f"{held('heads attend more uniformly where their input is more alike')}, and that BI decreases with the layer "
        f"index in {held('BI decreases with the layer index')}. High layers may still be the right ones to prune: "
        "notebook 03 measures that. Where the premise is not met, this theory is not the reason."
    )


def read_post_norm() -> str:
    """Gemma-2, where the paper's reason for alpha does not apply, and its printed alphas."""
    alphas = " ".join(f"{alpha:g}" for _, alpha in sorted(published_alphas()["Gemma2-9B"].items(), reverse=True))
    return (
        "One of the paper's models speaks against the norm as the whole reason. Gemma2-9B normalises what leaves its "
        "attention, so that the branch has the same norm, up to the gains, with and without aggregation. Yet the α "
        f"that the paper found for it are far from 1: {alphas}, from the top layer down."
    )


def trend(layers: pd.DataFrame, quantity: str) -> Interval:
    """Spearman's ρ of a quantity with the layer index: mean over documents and 95 % interval."""
    part = layers[layers["quantity"] == quantity]
    return mean_interval([spearmanr(rows["layer"], rows["value"]).statistic for _, rows in part.groupby("document")])


def verdict(interval: Interval | Sequence[float]) -> str:
    """Of a quantity that the claim needs to be positive."""
    _, low, high = interval
    return "holds" if low > 0 else "does not hold" if high < 0 else "too small to tell"


def _negated(interval: Interval) -> Interval:
    return Interval(-interval.value, -interval.high, -interval.low)


def _rho(interval: Interval, other: str = "the layer index") -> str:
    return f"rank correlation with {other} {interval.value:+.2f}{_bracket(interval, '+.2f')}"


def _percent(interval: Interval) -> str:
    return f"{100 * interval.value:+.1f} %{_bracket(Interval(*(100 * x for x in interval)), '+.1f')}"


def _bracket(interval: Interval, digits: str) -> str:
    """The interval's ends, where there is more than one document."""
    return "" if np.isnan(interval.low) else f" [{interval.low:{digits}}, {interval.high:{digits}}]"


def _documents(rows: pd.DataFrame) -> str:
    number = rows["document"].nunique()
    return f"{number} document{'s' if number > 1 else ''}"
