"""What the results of notebook 04 say, in words that follow the numbers."""

import pandas as pd

from harp_lib.baseline_frames import EQUAL_HEADS, EQUAL_PARAMETERS, TITLE, bias_frame, perplexity_frame, repetition
from harp_lib.experiments.alpha_study import HELD_OUT
from harp_lib.measure.corpora import TITLES
from harp_lib.measure.models import display_name
from harp_lib.methods import BASELINES
from harp_lib.paper_accounting import ffn_ratios, paper_ratios
from harp_lib.results import Cells
from harp_lib.statistics import mean_interval
from harp_lib.tables import interval

HOLDS, FAILS, OPEN = "holds", "does not hold", "too small to tell"
CLOSE = 1e-4  # of two shares of FFN channels that count as equal


def read_ranges(ranges: pd.DataFrame, reference: dict[str, dict[str, float]]) -> str:
    """How much the range matters; HARP's perplexity on the same documents is in ``reference``."""
    lines = []
    for (model, method), part in ranges.groupby(["model", "method"], sort=False):
        by_rank = part.sort_values("perplexity")
        best, worst = by_rank.iloc[0], by_rank.iloc[-1]
        text = f"- **{display_name(model)}, {TITLE[method]}.** The best range is {_range(best)}"
        text += f", the next {_range(by_rank.iloc[1])}" if len(part) > 1 else ""
        harp = reference[model][EQUAL_HEADS]
        lower = (part["perplexity"] < harp).sum()
        text += f", the worst {_range(worst)}. {lower} of {len(part)} ranges come out below HARP ({harp:.2f})."
        if method == "flap":
            text += _elsewhere(ranges[ranges["model"] == model], best)
        lines.append(text)
    return "\n".join(lines)


def _elsewhere(ranges: pd.DataFrame, best: pd.Series) -> str:
    """What the other methods come to in FLAP's best range, where one of theirs is the same."""
    same = ranges[(ranges["start"] == best["start"]) & (ranges["end"] == best["end"]) & (ranges["method"] != "flap")]
    if same.empty:
        return ""
    others = _listed([f"{TITLE[row.method]} {row.perplexity:.2f}" for row in same.itertuples()])
    return f" In its best range the other methods come to: {others}."


def read_groups(groups: pd.DataFrame) -> str:
    """Where in the model each method's groups are."""
    lines = []
    for (model, method), part in groups.groupby(["model", "method"], sort=False):
        gone, layers = part[part["state"] != "kept"], part["layer"].max() + 1
        emptied = (gone.groupby("layer").size() == part["group"].max() + 1).sum()
        upper = (gone["layer"] >= layers / 2).mean()
        empty = "no layer is" if emptied == 0 else "1 layer is" if emptied == 1 else f"{emptied} layers are"
        text = (
            f"- **{display_name(model)}, {TITLE[method]}**: {len(gone)} groups from {gone['layer'].nunique()} layers, "
            f"{100 * upper:.0f} % of them in the upper half; {empty} left without any"
        )
        thinner = part[part["channels"] > 0]["layer"].nunique()
        lines.append(text + (f"; FFN channels go from {thinner} of {layers} layers." if thinner else "."))
    return "\n".join(lines)


def answer(cells: Cells) -> str:
    """Does HARP beat the baselines? A few sentences for each model."""
    lines = []
    for model, part in perplexity_frame(cells).groupby("model", sort=False):
        equal_parameters, found = _relations(part, EQUAL_PARAMETERS)
        equal_heads, _ = _relations(part, EQUAL_HEADS)
        short = "yes" if found == {HOLDS} else "no" if FAILS in found else "too small to tell"
        lines.append(
            f"- **{display_name(model)}: {short}.** With as many parameters removed, the perplexity of "
            f"{TITLE[EQUAL_PARAMETERS]} on held-out text is {equal_parameters}. With as many heads removed, that of "
            f"{TITLE[EQUAL_HEADS]} is {equal_heads}."
        )
    return "\n".join(lines)


def _relations(part: pd.DataFrame, reference: str) -> tuple[str, set[str]]:
    """How the reference's perplexity stands to each baseline's, in words, and all outcomes on all texts."""
    words = {HOLDS: ("lower", "than"), FAILS: ("higher", "than"), OPEN: ("not told apart", "from")}
    alike: dict[str, list[str]] = {}
    mixed, found = [], set()
    for method in BASELINES:
        evidence, outcomes = _comparison(part, method, reference)
        found |= set(outcomes)
        if len(set(outcomes)) == 1:
            alike.setdefault(outcomes[0], []).append(TITLE[method])
        else:
            by_text = [f"{words[outcome][0]} on {text}" for text, outcome in zip(evidence, outcomes, strict=True)]
            mixed.append(f"compared with that of {TITLE[method]}, {_listed(by_text)}")
    same = [f"{' '.join(words[outcome])} that of {_listed(alike[outcome])}" for outcome in words if outcome in alike]
    return "; ".join([*same, *mixed]), found


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
                against = f"perplexity of {TITLE[method]} against {TITLE[reference]}"
                rows.append((claim, display_name(model), *_worded(against, *_comparison(part, method, reference))))
    for model, part in bias_frame(cells).query("split == @HELD_OUT").groupby("model", sort=False):
        evidence, outcomes = {}, []
        for row in part.itertuples():
            evidence[TITLES[row.corpus]] = interval(row.change, row.low, row.high)
            outcomes.append(_outcome(row.low, row.high))
        rows.append(
            (
                "FLAP's bias lowers perplexity",
                display_name(model),
                *_worded("perplexity without it", evidence, outcomes),
            )
        )
    for model in dict.fromkeys(model for model, _, task in cells if task == "writing"):
        claim = "the baseline that reads best also writes with less repetition than HARP"
        rows.append((claim, display_name(model), *_writing(cells, model)))
    rows += [(claim, "the paper's four", evidence, found) for claim, evidence, found in _ratio_rows()]
    return pd.DataFrame(rows, columns=["claim", "model", "evidence", "verdict"])


def _comparison(part: pd.DataFrame, method: str, reference: str) -> tuple[dict[str, str], list[str]]:
    """A baseline against HARP on the held-out text of every corpus: the change by corpus, and what follows."""
    evidence, outcomes = {}, []
    for row in part[(part["method"] == method) & (part["split"] == HELD_OUT)].to_dict("records"):
        change, low, high = (row[f"{reference} {end}"] for end in ("change", "low", "high"))
        evidence[TITLES[row["corpus"]]] = interval(change, low, high)
        outcomes.append(_outcome(low, high))
    return evidence, outcomes


def _outcome(low: float, high: float) -> str:
    """The 95 % interval of what the claim needs to be positive, as a verdict."""
    return HOLDS if low > 0 else FAILS if high < 0 else OPEN


def _worded(what: str, evidence: dict[str, str], outcomes: list[str]) -> tuple[str, str]:
    """Evidence and verdict in words, by text where they differ."""
    found = outcomes[0]
    if len(set(outcomes)) > 1:
        found = "; ".join(f"{text}: {outcome}" for text, outcome in zip(evidence, outcomes, strict=True))
    return f"{what}: " + "; ".join(f"{text} {said}" for text, said in evidence.items()), found


def _writing(cells: Cells, model: str) -> tuple[str, str]:
    """HARP's repetition against that of the baseline that reads best, paired by the text that is continued."""
    frame = perplexity_frame(cells)
    read = frame[(frame["model"] == model) & frame["method"].isin(BASELINES) & (frame["split"] == HELD_OUT)]
    continued = cells[model, EQUAL_HEADS, "writing"]["inputs"]["corpus"]
    best = read[read["corpus"] == continued].set_index("method")["perplexity"].idxmin()
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
    return f"layers {row['start']}–{row['end'] - 1} (perplexity {row['perplexity']:.2f})"
