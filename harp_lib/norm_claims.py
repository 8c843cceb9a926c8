"""What the paper's Sections 2.1 and 2.3 say about real models, judged on the cells of notebook 02."""

from typing import Any

import numpy as np
import pandas as pd

from harp_lib.accounting import paper_configs
from harp_lib.claims import COLUMNS, documents, percent
from harp_lib.experiments.norm_study import PLANS, ratio_frame, stream_frame
from harp_lib.accounting import attention_window, overtaking_length
from harp_lib.measure.corpora import TITLES
from harp_lib.measure.models import display_name
from harp_lib.published import published_alphas
from harp_lib.results import Cells
from harp_lib.statistics import Interval, mean_interval, paired_change

Row = tuple[str, str, str, str, str, str]  # as COLUMNS

VALUES = "aggregation changes the norm of the values"
STREAM = "pruning changes the norm of the residual stream"
AT_TOP = "the searched α brings the norm back, at the top"
EVERYWHERE = "the searched α brings the norm back, over all pruned layers"
REASON = "α works because it keeps the norm"
OVERTAKES = "attention overtakes the FFN at N = d_ff"


def norm_claims(cells: Cells) -> pd.DataFrame:
    """Every claim: statement, what was checked, on what, evidence, verdict, counterexample."""
    ratios, streams = ratio_frame(cells), stream_frame(cells)
    rows = []
    for model in ratios["model"].unique():
        for corpus in ratios["corpus"].unique():
            rows.append(_value_row(model, corpus, ratios[(ratios["model"] == model) & (ratios["corpus"] == corpus)]))
        results = {plan: cells[model, plan, "reading"]["result"] for plan in PLANS}
        corpus, number = results["dense"]["corpus"], len(results["dense"]["nll"])
        on = f"{display_name(model)}, {TITLES[corpus]}, {number} held-out document{'s' if number > 1 else ''}"
        pruned = [int(layer) for layer in cells[model, "alpha-1", "reading"]["inputs"]["alphas"]]
        rows += _stream_rows(on, streams[(streams["model"] == model) & (streams["depth"] > min(pruned))])
        rows.append(_reason_row(on, results))
    return pd.DataFrame([*rows, *_overtaking_rows()], columns=COLUMNS)


def _value_row(model: str, corpus: str, ratios: pd.DataFrame) -> Row:
    every, rest = (
        ratios[ratios["tokens"] == tokens].groupby(["layer", "head"])["ratio"].mean()
        for tokens in ("all tokens", "without first")
    )
    changed = (every - 1).abs() > 0.05
    evidence = (
        f"‖ÂV‖/‖V‖ from {every.min():.2f} to {every.max():.2f}, median {every.median():.2f} ({rest.median():.2f} "
        f"without the first token); {changed.sum()} of {len(every)} heads are more than 5 % from 1"
    )
    said = "holds" if changed.all() else f"holds for {changed.mean():.0%} of the heads"
    on = f"{display_name(model)}, {TITLES[corpus]}, {documents(ratios)}"
    return ("Proposition 1, its use", VALUES, on, evidence, said, "")


def _stream_rows(on: str, streams: pd.DataFrame) -> list[Row]:
    streams = streams[streams["tokens"] == "without first"]
    logs = {
        plan: np.log(part.pivot_table(index="document", columns="depth", values="ratio"))
        for plan, part in streams.groupby("plan")
    }  # each documents × depths
    unscaled, searched = logs["alpha-1"], logs["searched"]
    top = {plan: mean_interval(np.expm1(logs[plan].iloc[:, -1])) for plan in ("alpha-1", "searched")}
    changed = "holds" if top["alpha-1"].low * top["alpha-1"].high > 0 else "too small to tell"
    rows = [("Section 2.3", STREAM, on, f"{percent(top['alpha-1'])} at the top with α = 1", changed, "")]

    evidence = f"{percent(top['searched'])} with the searched α, {percent(top['alpha-1'])} with α = 1"
    said = _gone(unscaled.iloc[:, -1].abs(), searched.iloc[:, -1].abs())
    rows.append(("Section 2.3", AT_TOP, on, evidence, said, ""))

    off, left = np.expm1(unscaled.mean()), np.expm1(searched.mean())
    evidence = (
        f"from {100 * left.min():+.1f} to {100 * left.max():+.1f} % with the searched α, from {100 * off.min():+.1f} "
        f"to {100 * off.max():+.1f} % with α = 1"
    )
    said = _gone(unscaled.abs().mean(axis=1), searched.abs().mean(axis=1))
    further = left.index[searched.mean().abs() > unscaled.mean().abs()]
    if len(further):
        said += f", and further off than with α = 1 at depth {', '.join(map(str, further))}"
    return [*rows, ("Section 2.3", EVERYWHERE, on, evidence, said, "")]


def _gone(before: pd.Series, after: pd.Series) -> str:
    """How much of a deviation is gone, document by document."""
    won = mean_interval(before - after)
    share = 1 - after.mean() / before.mean() if before.mean() else 0.0
    if won.high < 0:
        return "does not hold"
    if not won.low > 0:
        return "too small to tell"
    return "holds" if share >= 0.9 else f"in part: {share:.0%} of the deviation is gone"


def _reason_row(on: str, results: dict[str, dict[str, Any]]) -> Row:
    """Is the alpha that keeps the norm better than others that shrink? ``constant`` shrinks and knows nothing."""

    def change(first: str, second: str) -> Interval:
        return paired_change(results[first]["nll"], results[second]["nll"], results["dense"]["tokens"])

    won = change("alpha-1", "searched")
    if np.isnan(won.high):
        return ("Section 2.3", REASON, on, "", "too few documents to tell", "")
    if won.high >= 0:
        evidence = f"searched α against α = 1: perplexity {percent(won)}"
        return ("Section 2.3", REASON, on, evidence, "not to be judged: the search wins nothing over α = 1", "")
    shares = {
        plan: np.log1p(change("alpha-1", plan).value) / np.log1p(won.value)
        for plan in ("norm-matching", "reconstructing", "constant")
    }
    listed = ", ".join(f"{PLANS[plan].removeprefix('HARP, ')} {share:.0%}" for plan, share in shares.items())
    loss = change("searched", "norm-matching")
    evidence = f"of what the search wins over α = 1 in log perplexity: {listed}; norm-matching α against searched α: "
    evidence += f"perplexity {percent(loss)}"
    rivals = [change("norm-matching", plan) for plan in ("reconstructing", "constant")]
    if change("alpha-1", "norm-matching").high >= 0:
        said = "does not hold: the norm-matching α wins nothing over α = 1"
    elif not all(rival.low > 0 for rival in rivals):
        said = "not shown: shrinking the branch in another way wins as much"
    else:
        said = "in part: the norm-matching α is better than other ways to shrink, and worse than the searched one"
        said = said if loss.low > 0 else "holds"
    return ("Section 2.3", REASON, on, evidence, said, "")


def _overtaking_rows() -> list[Row]:
    rows = []
    for model, config in paper_configs().items():
        full, causal = (overtaking_length(config, way) for way in (False, True))
        size = config.intermediate_size
        evidence = (
            f"at N = {full:,} = {full / size:.2f} d_ff, or {causal:,} = {causal / size:.2f} d_ff if only visible pairs "
            f"are counted; d_ff = {size:,}, context {config.max_position_embeddings:,}"
        )
        windows = sum(attention_window(config, layer) is not None for layer in range(config.num_hidden_layers))
        said = "holds" if full == size else "does not hold: later, because the FFN has three matrices"
        if windows:
            said += f" and {windows} of {config.num_hidden_layers} layers have a sliding window"
        if full > config.max_position_embeddings:
            said += "; never within the model's context"
        rows.append(("Section 2.1", OVERTAKES, f"{model}, counted FLOPs", evidence, said, ""))
    return rows


def read_post_norm() -> str:
    """Gemma-2, where Proposition 1 does not reach the residual stream, and its printed alphas."""
    alphas = " ".join(f"{alpha:g}" for _, alpha in sorted(published_alphas()["Gemma2-9B"].items(), reverse=True))
    return (
        "Gemma2-9B is a case of its own. It normalises what leaves its attention, so that the branch has the same "
        "norm, up to the gains, with aggregation and without: Proposition 1 does not reach its residual stream, whose "
        "norm can still change, through the angle at which the branch joins it. The α that the paper found for it are "
        f"far from 1 all the same: {alphas}, from the top layer down."
    )
