"""Tables of notebook 05; the two in the paper's layout are in ``score_layout``."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd

from harp_lib.baseline_frames import EQUAL_HEADS, EQUAL_PARAMETERS, TITLE
from harp_lib.baseline_tables import one_line
from harp_lib.measure.benchmarks import BENCHMARKS
from harp_lib.measure.models import display_name
from harp_lib.profiles import load_profile
from harp_lib.published import published
from harp_lib.results import Cells
from harp_lib.score_answers import beside_frame, example_frame, length_frame
from harp_lib.score_claims import points, share
from harp_lib.score_frames import AVERAGE, average_frame, difference_frame, score_frame
from harp_lib.score_kept import CHANCE, KIND, KINDS, counterparts, kept_frame, published_kept
from harp_lib.score_layout import MISSING, main_table
from harp_lib.score_verdict import verdict
from harp_lib.statistics import Interval
from harp_lib.tables import with_error


def score_tables(cells: Cells) -> Iterator[tuple[pd.DataFrame, str, pd.DataFrame]]:
    """Every table of the experiment, its file name, and its unrounded numbers."""
    scores = score_frame(cells)
    kept, averages = kept_frame(cells, scores), average_frame(scores).assign(task=AVERAGE)
    differences = differences_frame(cells, scores)
    yield asked(cells), "scores_asked", asked(cells)
    for kind in KINDS:
        numbers = pd.concat([frame[frame["kind"] == kind] for frame in (scores, averages)])
        yield main_table(cells, scores, kind), f"scores_{kind}", numbers
        of_kind = differences[differences["kind"] == kind]
        yield difference_table(of_kind), f"score_differences_{kind}", of_kind
        of_kind = kept[kept["kind"] == kind]
        yield kept_table(of_kind), f"score_kept_{kind}", of_kind
    yield beside_table(beside_frame(cells)), "scores_beside", beside_frame(cells)
    yield answer_lengths(length_frame(cells)), "answer_lengths", length_frame(cells)
    yield answer_examples(example_frame(cells)), "answer_examples", example_frame(cells)
    if scores["failed"].notna().any():
        yield missing_scores(scores), "missing_scores", missing_scores(scores)
    claims = verdict(cells)
    yield claims, "score_verdict", claims


def asked(cells: Cells) -> pd.DataFrame:
    """What each benchmark is made of, here and in the paper."""
    printed = published("dataset_statistics").query("metric == 'documents'").set_index("task")["value"]
    official = load_profile("paper")["evaluation"]["tasks"]
    rows = []
    for name, benchmark in BENCHMARKS.items():
        stored = [cell for (*_, task), cell in cells.items() if task == name]
        if not stored:
            continue
        cell = next((cell for cell in stored if "failed" not in cell["result"]), stored[0])
        inputs, result = cell["inputs"], cell["result"]
        subtasks, versions = result.get("subtasks", {}), result.get("versions", {})
        rows.append(
            {
                "task": benchmark.title,
                "name in lm-eval": name,
                "version": ", ".join(dict.fromkeys(f"{version:g}" for version in versions.values())),
                "metric": benchmark.metric,
                "filter": "" if benchmark.filter == "none" else benchmark.filter,
                "kept beside it": benchmark.beside,
                "questions": str(sum(subtasks.values())) if subtasks else MISSING,
                "questions in the paper": f"{printed[benchmark.title]:,.0f}" if benchmark.title in printed else "",
                "subtasks": f"{len(subtasks)} of {len(benchmark.subtasks())}" if benchmark.is_group else "",
                "shots": str(inputs.get("shots", MISSING)),
                "shots in the paper": str(official[name]["shots"]),
                "new tokens": "" if benchmark.choices else str(inputs.get("new_tokens") or "lm-eval's limit"),
                "chance": f"{100 * CHANCE[benchmark.title]:.0f} %" if benchmark.choices else "",
            }
        )
    return pd.DataFrame(rows)


def missing_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """The scores that there are not, and why; empty if there are all."""
    failed = scores[scores["failed"].notna()]
    return pd.DataFrame(
        {
            "model": display_name(row.model),
            "task": row.task,
            "method": TITLE[row.method],
            "why there is no score": one_line(row.failed, 200),
        }
        for row in failed.itertuples()
    )


def differences_frame(cells: Cells, scores: pd.DataFrame) -> pd.DataFrame:
    """The paired differences to HARP and to HARP+FLAP: those of ``difference_frame``, and the column ``reference``."""
    frames = [
        difference_frame(cells, scores, reference).assign(reference=reference)
        for reference in (EQUAL_HEADS, EQUAL_PARAMETERS)
    ]
    return pd.concat(frames, ignore_index=True)


def difference_table(differences: pd.DataFrame) -> pd.DataFrame:
    """By how many points each method scores higher than HARP and than HARP+FLAP, with 95 % intervals."""
    rows = []
    for (model, reference), part in differences.groupby(["model", "reference"], sort=False):
        for row in _block(display_name(model), part, lambda row: points(Interval(row.change, row.low, row.high))):
            rows.append({"model": row["model"], "against": TITLE[reference], **row})
    return pd.DataFrame(rows)


def kept_table(kept: pd.DataFrame) -> pd.DataFrame:
    """The share of the dense score above chance that each method keeps: ours with 95 % intervals, then the paper's."""
    rows = []
    for model, part in kept.groupby("model", sort=False):
        rows += _block(display_name(model), part, lambda row: share(Interval(row.kept, row.low, row.high)))
    printed = published_kept()
    printed = printed[printed["kind"].isin(kept["kind"])]
    for model in counterparts(kept["model"].unique()):
        rows += _block(f"{model} (paper)", printed[printed["model"] == model], lambda row: f"{100 * row.kept:.0f} %")
    return pd.DataFrame(rows).fillna(MISSING)


def beside_table(beside: pd.DataFrame) -> pd.DataFrame:
    """The metric that is kept beside the paper's: ``acc_norm`` after ``acc``, math-verify after plain comparison."""
    rows = []
    for model, part in beside.groupby("model", sort=False):
        rows += _block(
            display_name(model),
            part,
            lambda row: f"{with_error(row.score, row.error)} / {with_error(row.other_score, row.other_error)}",
        )
    heads = {row.task: f"{row.task} ({row.metric} / {row.other})" for row in beside.itertuples()}
    return pd.DataFrame(rows).rename(columns=heads)


def answer_lengths(lengths: pd.DataFrame) -> pd.DataFrame:
    """Mean length of the answers in tokens, with its standard error, and the limit that they ran under."""
    rows = []
    for model, part in lengths.groupby("model", sort=False):
        rows += _block(display_name(model), part, lambda row: with_error(row.tokens, row.error))
        limits = {row.task: "lm-eval's" if pd.isna(row.limit) else f"{row.limit:.0f}" for row in part.itertuples()}
        rows.append({"model": display_name(model), "method": "new tokens at most"} | _columns(part, limits))
    return pd.DataFrame(rows)


def answer_examples(examples: pd.DataFrame) -> pd.DataFrame:
    """The beginning of each method's answer to the same question; · stands for marks and line ends."""
    return pd.DataFrame(
        {
            "model": display_name(row.model),
            "question": f"{row.task}, {row.question}",
            "method": TITLE[row.method],
            "right": "yes" if row.score else "no",
            "tokens": row.tokens,
            "the answer begins": one_line(row.answer, 160) or "(nothing)",
        }
        for row in examples.itertuples()
    )


def _block(name: str, part: pd.DataFrame, text: Callable[[Any], str]) -> list[dict[str, str]]:
    """A row for each method with a cell for each task; where they are known, also the number of questions."""
    rows = [
        {"model": name, "method": TITLE[method]} | _columns(part, {row.task: text(row) for row in mine.itertuples()})
        for method, mine in part.groupby("method", sort=False)
    ]
    if "questions" in part:
        counts = {task: str(count) for task, count in part.groupby("task")["questions"].max().items()}
        rows.append({"model": name, "method": "questions"} | _columns(part, counts))
    return rows


def _columns(part: pd.DataFrame, shown: dict[str, str]) -> dict[str, str]:
    """A cell for each task, in the paper's order, the average last."""
    tasks = set(part["task"])
    return {task: shown.get(task, MISSING) for task in (*KIND, AVERAGE) if task in tasks}
