"""What the results of notebook 04 say, in words that follow the numbers."""

import pandas as pd

from .alpha_study import HELD_OUT
from .baseline_frames import EQUAL_HEADS, EQUAL_PARAMETERS, TITLE, bias_frame, perplexity_frame, range_frame, repetition
from .corpora import TITLES
from .methods import BASELINES
from .models import display_name
from .paper_accounting import ffn_ratios, paper_ratios
from .results import Cells
from .statistics import mean_interval
from .tables import interval

HOLDS, FAILS, OPEN = "holds", "does not hold", "too small to tell"
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
        empty = "no layer is" if emptied == 0 else "1 layer is" if emptied == 1 else f"{emptied} layers are"
        lines.append(
            f"- **{display_name(model)}, {TITLE[method]}**: {len(gone)} groups from {gone['layer'].nunique()} layers, "
            f"{100 * upper:.0f} % of them in the upper half; {empty} left without any."
        )
    return "\n".join(lines)


def answer(cells: Cells) -> str:
    """Does HARP beat the baselines? One sentence for each model, from the comparison at equal parameters."""
    lines = []
    for model, part in perplexity_frame(cells).groupby("model", sort=False):
        outcomes = {method: set(_comparison(part, method, EQUAL_PARAMETERS)[1]) for method in BASELINES}
        better, worse = ([TITLE[m] for m, found in outcomes.items() if found == {o}] for o in (HOLDS, FAILS))
        open_ = [TITLE[method] for method, found in outcomes.items() if found not in ({HOLDS}, {FAILS})]
        short = "yes" if len(better) == len(BASELINES) else "no" if worse else "not all of them, as far as can be told"
        said = [
            f"{relation} that of {_listed(names)}"
            for relation, names in (("lower than", better), ("higher than", worse), ("not told apart from", open_))
            if names
        ]
        lines.append(
            f"- **{display_name(model)}: {short}.** With as many parameters removed, the perplexity of "
            f"{TITLE[EQUAL_PARAMETERS]} on held-out text is {', '.join(said)}."
        )
    return "\n".join(lines)


def verdict(cells: Cells) -> pd.DataFrame:
    """Each claim with what was measured and what follows: a table of claim, model, evidence, verdict."""
    rows = []
    for model, part in perplexity_frame(cells).groupby("model", sort=False):
        for reference, question in (
            (EQUAL_PARAMETERS, "as many parameters removed"),
            (EQUAL_HEADS, "as many heads removed"),
        ):
            for method in BASELINES:
                claim = f"{TITLE[reference]} beats {TITLE[method]}, {question}"
                rows.append((claim, display_name(model), *_worded(*_comparison(part, method, reference))))
    for model, part in bias_frame(cells).query("split == @HELD_OUT").groupby("model", sort=False):
        evidence, outcomes = {}, []
        for row in part.itertuples():
            evidence[TITLES[row.corpus]] = f"{interval(row.change, row.low, row.high)} without it"
            outcomes.append(_outcome(row.low, row.high))
        rows.append(("FLAP's bias lowers perplexity", display_name(model), *_worded(evidence, outcomes)))
    for model in dict.fromkeys(model for model, _, task in cells if task == "writing"):
        claim = "the baseline that reads best also writes with less repetition than HARP"
        rows.append((claim, display_name(model), *_writing(cells, model)))
    for model, part in range_frame(cells).groupby("model", sort=False):
        rows.append(("where heads go matters more than which", display_name(model), *_places(part)))
    rows += [(claim, "the paper's four", evidence, found) for claim, evidence, found in _ratio_rows()]
    return pd.DataFrame(rows, columns=["claim", "model", "evidence", "verdict"])


def _comparison(part: pd.DataFrame, method: str, reference: str) -> tuple[dict[str, str], list[str]]:
    """A baseline against HARP on the held-out text of every corpus: the change by corpus, and what follows."""
    evidence, outcomes = {}, []
    for row in part[(part["method"] == method) & (part["split"] == HELD_OUT)].to_dict("records"):
        change, low, high = (row[f"{reference} {end}"] for end in ("change", "low", "high"))
        evidence[TITLES[row["corpus"]]] = f"{TITLE[method]} has {interval(change, low, high)}"
        outcomes.append(_outcome(low, high))
    return evidence, outcomes


def _outcome(low: float, high: float) -> str:
    """The 95 % interval of what the claim needs to be positive, as a verdict."""
    return HOLDS if low > 0 else FAILS if high < 0 else OPEN


def _worded(evidence: dict[str, str], outcomes: list[str]) -> tuple[str, str]:
    """Evidence and verdict in words, by text where they differ."""
    found = outcomes[0]
    if len(set(outcomes)) > 1:
        found = "; ".join(f"{text}: {outcome}" for text, outcome in zip(evidence, outcomes, strict=True))
    return "perplexity on held-out text: " + "; ".join(f"{text}, {said}" for text, said in evidence.items()), found


def _writing(cells: Cells, model: str) -> tuple[str, str]:
    """HARP's repetition against that of the baseline that reads best, paired by the text that is continued."""
    frame = perplexity_frame(cells)
    read = frame[(frame["model"] == model) & frame["method"].isin(BASELINES) & (frame["split"] == HELD_OUT)]
    best = read.loc[read["corpus"] == read["corpus"].iloc[0]].set_index("method")["perplexity"].idxmin()
    own, other = (cells[model, method, "writing"]["result"]["ids"] for method in (EQUAL_HEADS, best))
    pairs = [(repetition(first), repetition(second)) for first, second in zip(own, other, strict=True)]
    less = mean_interval([first - second for first, second in pairs])
    first, second = (100 * sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    reach = f"[{100 * less.low:+.0f}, {100 * less.high:+.0f}]"
    evidence = (
        f"{TITLE[best]} reads best of the baselines and repeats {second:.0f} % of its 4-grams, {TITLE[EQUAL_HEADS]} "
        f"{first:.0f} %; the difference is {100 * less.value:+.0f} points {reach} "
        f"over {len(pairs)} continuations"
    )
    return evidence, _outcome(less.low, less.high)


def _places(ranges: pd.DataFrame) -> tuple[str, str]:
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
    return evidence, f"{HOLDS if holds else FAILS}, by the median"


def _ratio_rows() -> list[tuple[str, str, str]]:
    ratios, channels = paper_ratios(), ffn_ratios()
    printed = ratios[ratios["method"] != "harp+flap"]
    agree = channels["difference"].abs() < CLOSE
    evidence = f"share of FFN channels within {CLOSE:g} of the official one for {agree.sum()} of {len(agree)}"
    for row in channels[~agree].itertuples():
        evidence += f"; {row.model} would need {row.ratio:.5f} and was run with {row.official:.5f}"
    return [
        (
            "the printed pruning ratios follow from the configs",
            f"{printed['matches'].sum()} of {len(printed)} to the printed digit",
            HOLDS if printed["matches"].all() else FAILS,
        ),
        (
            "HARP+FLAP removes as many parameters as the baselines",
            evidence,
            HOLDS if agree.all() else f"{HOLDS} for {agree.sum()} of {len(agree)}",
        ),
    ]


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _range(row: pd.Series) -> str:
    return f"{row['start']}–{row['end'] - 1}"
