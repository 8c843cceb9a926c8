"""The front page: its drawing, and what README.md says of results, rendered from committed tables.

``python -m harp_lib.front_page`` writes both again. What stands in README.md between ``<!-- begin NAME -->`` and
``<!-- end NAME -->`` is written by the function of that name here, the rest by hand.
"""

import re
from math import isnan

import pandas as pd

from harp_lib import costs, drawing, paths
from harp_lib.baseline_frames import EQUAL_PARAMETERS, TITLE
from harp_lib.claims import negated, verdict
from harp_lib.measure.corpora import TITLES
from harp_lib.measure.models import display_name
from harp_lib.methods import BASELINES
from harp_lib.paper_claims import OUTCOMES
from harp_lib.profiles import load_profile
from harp_lib.score_frames import AVERAGE
from harp_lib.statistics import Interval
from harp_lib.tables import with_error

PROFILE = "mini"
TABLES = paths.FIGURES / PROFILE / "tables"
DRAWING, README = paths.FIGURES / "harp.svg", paths.ROOT / "README.md"
TEXT, HELD_OUT = "python-docs", "validation"  # on which perplexity is shown: the α were searched on its other half
COMPARED = EQUAL_PARAMETERS  # with the baselines
SCORES = {  # the tables of scores and of differences, and what they call the average over tasks
    "generation": ("scores_generation", "score_differences_generation", AVERAGE),
    "discriminative": ("scores_discriminative", "score_differences_discriminative", AVERAGE),
    "LongBench": ("longbench_scores", "longbench_differences", "All tasks"),
}
_BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def rendered(text: str) -> str:
    """A front page whose blocks are written again.

    Raises
    ------
    FileNotFoundError
        If a table that a block is rendered from is not there.
    """
    return _BLOCK.sub(lambda block: f"{block[1]}{BLOCKS[block[2]]()}\n{block[3]}", text)


def results() -> str:
    """What the small model scores under each method, and which differences can be told from none."""
    texts = _table("baseline_perplexity").query("corpus == @TEXT and split == @HELD_OUT")
    return "\n\n".join([_markdown(glance_table(texts)), _caption(texts), comparisons(texts), savings()])


def glance_table(texts: pd.DataFrame) -> pd.DataFrame:
    """One row for each method: what was removed, perplexity of held-out texts, and the average scores."""
    removed = _table("baseline_costs").set_index("method")["removed_fraction"]
    scores = {kind: _scores(kind) for kind in SCORES}
    return pd.DataFrame(
        {
            "method": TITLE[row.method],
            "removed": f"{100 * removed[row.method]:.1f} %",
            "perplexity": with_error(row.perplexity, row.error),
        }
        | {
            kind: f"{part.loc[row.method, 'score']:.1f} ± {part.loc[row.method, 'error']:.1f}"
            for kind, part in scores.items()
        }
        for row in texts.itertuples()
    )


def comparisons(texts: pd.DataFrame) -> str:
    """Whom HARP+FLAP is ahead of, measure by measure, by paired differences with 95 % intervals."""
    told = {
        "holds": "ahead of {}",
        "does not hold": "behind {}",
        "too small to tell": "the difference to {} is too small to tell",
    }
    lines = [f"{TITLE[COMPARED]} and the models that lost as many parameters, by paired differences (95 %):\n"]
    for measure, intervals in leads(texts).items():
        names = {words: [TITLE[name] for name in BASELINES if verdict(intervals[name]) == words] for words in told}
        lines.append(
            f"- {measure}: " + "; ".join(told[words].format(_listed(names[words])) for words in told if names[words])
        )
    return "\n".join(lines)


def leads(texts: pd.DataFrame) -> dict[str, dict[str, Interval]]:
    """By measure and baseline: how far HARP+FLAP is ahead, of perplexity a share of its own, of scores points."""
    columns = [f"{COMPARED} {part}" for part in ("change", "low", "high")]
    ahead = {"perplexity": {row["method"]: Interval(*row[columns]) for _, row in texts.iterrows()}}
    for kind, (_, differences, average) in SCORES.items():
        rows = _table(differences).query("reference == @COMPARED")
        rows = rows[rows.get("task", rows["kind"]) == average]
        ahead[kind] = {row.method: negated(Interval(row.change, row.low, row.high)) for row in rows.itertuples()}
    return ahead


def savings() -> str:
    """Time and cache that HARP saves at the longest text that was timed repeatedly."""
    reading, writing = (
        _table(f"efficiency_{part}").query("variant == 'harp'").dropna(subset="saved_low").iloc[-1]
        for part in ("prefill", "decode")
    )
    time = [
        f"{100 * row.saved:.1f} % [{100 * row.saved_low:.1f}, {100 * row.saved_high:.1f}]" for row in (reading, writing)
    ]
    cache = _table("baseline_costs").set_index("method")["kv_bytes_per_token"]
    freed = 1 - cache["harp"] / cache["dense"]
    return (
        f"HARP saves, with 95 % intervals, {time[0]} of the time of reading {reading.tokens:,} tokens, {time[1]} of "
        f"that of writing one after {writing.tokens:,}, and {100 * freed:.0f} % of the KV cache."
    )


def claims() -> str:
    """How many of the paper's claims came out how."""
    outcomes = pd.read_csv(TABLES / "claims.csv")["outcome"]
    counted = [f"**{number} {outcome}**" for outcome in OUTCOMES if (number := (outcomes == outcome).sum())]
    return f"{len(outcomes)} claims of the paper, each judged: {_listed(counted)}."


def full_size() -> str:
    """What each notebook needs in the profile paper."""
    sizes = costs.full_size()
    shown = {
        "GPU memory": [f"{value:.0f} GiB" for value in sizes["GPU memory (GiB)"]],
        "GPU hours": [_hours(*row) for row in zip(sizes["GPU hours"], sizes["what dominates"], strict=True)],
    }
    return _markdown(sizes.assign(**shown)[["notebook", "models", "GPU memory", "GPU hours", "what dominates"]])


def _hours(value: float, dominating: str) -> str:
    """GPU hours in words: answers may end before they are as long as they may get."""
    if isnan(value):
        return "not counted"
    return f"{'at most ' if dominating.startswith('answers to') else ''}{float(f'{value:.2g}'):g}"


def write() -> None:
    """Draw the drawing and write the blocks of README.md."""
    drawing.draw(DRAWING)
    README.write_text(rendered(README.read_text(encoding="utf-8")), encoding="utf-8")


def _model() -> str:
    return load_profile(PROFILE)["models"][0]


def _table(name: str) -> pd.DataFrame:
    """A table of the profile's model, unrounded."""
    table = pd.read_csv(TABLES / f"{name}.csv")
    return table[table["model"] == _model()]


def _scores(kind: str) -> pd.DataFrame:
    """Average over all tasks of a kind: score, error, questions and tasks of each method, which is the index."""
    name, _, average = SCORES[kind]
    scores = _table(name)
    averages = scores[scores["task"] == average].set_index("method")
    asked = scores[scores["tasks"].isna()].groupby("method")["questions"].sum()  # the other rows are averages
    return averages.assign(questions=asked)


def _caption(texts: pd.DataFrame) -> str:
    asked = []
    for kind in SCORES:
        most = _scores(kind)[["questions", "tasks"]].max()
        asked.append(f"{most['questions']:.0f} questions of {most['tasks']:.0f} {kind} tasks")
    return (
        f"*{display_name(_model())}, ± standard error. Perplexity per token of {texts['documents'].max()} held-out "
        f"documents ({TITLES[TEXT]}), less is better; averages in per cent over {_listed(asked)}; removed are shares "
        f"of the linear parameters of the decoder layers. {_at_the_floor()}*"
    )


def _at_the_floor() -> str:
    kept = pd.concat([_table("score_kept_generation"), _table("score_kept_discriminative")])
    tasks = list(kept[kept["floor"] & (kept["task"] != AVERAGE)]["task"].unique())
    return f"At the floor, where even the dense model has nothing to lose: {_listed(tasks) if tasks else 'no task'}."


def _markdown(table: pd.DataFrame) -> str:
    return table.to_markdown(index=False, disable_numparse=True)


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


BLOCKS = {"results": results, "claims": claims, "full_size": full_size}

if __name__ == "__main__":
    write()
