"""What the results of notebook 04 say, in words that follow the numbers."""

import pandas as pd

from .alpha_study import HELD_OUT
from .baseline_frames import EQUAL_HEADS, EQUAL_PARAMETERS, TITLE, perplexity_frame, range_frame
from .corpora import TITLES
from .methods import BASELINES
from .models import display_name
from .paper_accounting import ffn_ratios, paper_ratios
from .results import Cells
from .tables import interval

CLOSE = 1e-4  # of two shares of FFN channels that count as equal


def read_ranges(ranges: pd.DataFrame, reference: dict[str, dict[str, float]]) -> str:
    """How much the range matters, and how many ranges are better than HARP, whose perplexity is in ``reference``."""
    lines = []
    for (model, method), part in ranges.groupby(["model", "method"], sort=False):
        best, worst = part.loc[part["perplexity"].idxmin()], part.loc[part["perplexity"].idxmax()]
        harp = reference[model][EQUAL_HEADS]
        better = (part["perplexity"] < harp).sum()
        lines.append(
            f"- **{display_name(model)}, {TITLE[method]}.** Best are layers {_range(best)} (perplexity "
            f"{best['perplexity']:.2f}), worst are {_range(worst)} ({worst['perplexity']:.2f}, "
            f"{worst['perplexity'] / best['perplexity']:.1f} times as much). {better} of {len(part)} ranges are better "
            f"than HARP ({harp:.2f}) on these documents."
        )
    return "\n".join(lines)


def read_groups(groups: pd.DataFrame) -> str:
    """Where in the model each method's groups are."""
    lines = []
    for (model, method), part in groups.groupby(["model", "method"], sort=False):
        gone, layers = part[part["state"] != "kept"], part["layer"].max() + 1
        emptied = (gone.groupby("layer").size() == part["group"].max() + 1).sum()
        upper = (gone["layer"] >= layers / 2).mean()
        lines.append(
            f"- **{display_name(model)}, {TITLE[method]}**: {len(gone)} groups from {gone['layer'].nunique()} layers, "
            f"{100 * upper:.0f} % of them in the upper half, {emptied} layers without any left."
        )
    return "\n".join(lines)


def verdict(cells: Cells) -> pd.DataFrame:
    """Each claim with what was measured and what follows: a table of claim, model, evidence, verdict."""
    perplexities = perplexity_frame(cells)
    rows = []
    for model, part in perplexities.groupby("model", sort=False):
        for reference, question in (
            (EQUAL_PARAMETERS, "as many parameters removed"),
            (EQUAL_HEADS, "as many heads removed"),
        ):
            for method in BASELINES:
                rows.append(
                    {
                        "claim": f"{TITLE[reference]} beats {TITLE[method]}, {question}",
                        "model": display_name(model),
                        **_comparison(part[part["method"] == method], reference),
                    }
                )
    for model, part in range_frame(cells).groupby("model", sort=False):
        rows.append({"claim": "where heads go matters more than which", "model": display_name(model), **_places(part)})
    return pd.DataFrame([*rows, *_ratio_rows()])


def _comparison(part: pd.DataFrame, reference: str) -> dict[str, str]:
    """A baseline against HARP on the held-out text of every corpus."""
    evidence, signs = [], []
    for row in part[part["split"] == HELD_OUT].to_dict("records"):
        change, low, high = (row[f"{reference} {end}"] for end in ("change", "low", "high"))
        evidence.append(f"{TITLES[row['corpus']]}: {interval(change, low, high)}")
        signs.append(1 if low > 0 else -1 if high < 0 else 0)
    found = "the baseline's perplexity on held-out text, against it: " + "; ".join(evidence)
    if all(sign > 0 for sign in signs):
        return {"evidence": found, "verdict": "holds"}
    if all(sign < 0 for sign in signs):
        return {"evidence": found, "verdict": "does not hold"}
    return {"evidence": found, "verdict": "too small to tell" if not any(signs) else "differs between texts"}


def _places(ranges: pd.DataFrame) -> dict[str, str]:
    """Spread of perplexity over ranges of one length, against the spread over methods in one range."""
    uniform = ranges[ranges["method"] != "flap"]
    over_ranges = uniform.groupby(["method", "layers"])["perplexity"].agg(lambda values: values.max() / values.min())
    over_methods = uniform.groupby(["start", "end"])["perplexity"].agg(lambda values: values.max() / values.min())
    evidence = (
        f"the worst range has {over_ranges.min():.1f} to {over_ranges.max():.1f} times the perplexity of the best of "
        f"the same method and length; in one range, the worst of {uniform['method'].nunique()} uniform methods has "
        f"{over_methods.min():.1f} to {over_methods.max():.1f} times that of the best"
    )
    holds = over_ranges.median() > over_methods.median()
    return {"evidence": evidence, "verdict": "holds, by the median" if holds else "does not hold, by the median"}


def _ratio_rows() -> list[dict[str, str]]:
    ratios, channels = paper_ratios(), ffn_ratios()
    printed = ratios[ratios["method"] != "harp+flap"]
    agree = channels["difference"].abs() < CLOSE
    off = ", ".join(
        f"{row.model} would need {row.ratio:.5f} and was run with {row.official:.5f}"
        for row in channels[~agree].itertuples()
    )
    return [
        {
            "claim": "the printed pruning ratios follow from the configs",
            "model": "the paper's four",
            "evidence": f"{printed['matches'].sum()} of {len(printed)} to the printed digit",
            "verdict": "holds" if printed["matches"].all() else "does not hold",
        },
        {
            "claim": "HARP+FLAP removes as many parameters as the baselines",
            "model": "the paper's four",
            "evidence": f"share of FFN channels within {CLOSE:g} of the official one for {agree.sum()} of {len(agree)}"
            + (f"; {off}" if off else ""),
            "verdict": "holds" if agree.all() else f"holds for {agree.sum()} of {len(agree)}",
        },
    ]


def _range(row: pd.Series) -> str:
    return f"{row['start']}–{row['end'] - 1}"
