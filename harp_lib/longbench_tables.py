"""Tables of notebook 07. To be read, methods are columns and tasks are rows; a file has the paper's layout too."""

import re
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from harp_lib.baseline_frames import TITLE, ordered
from harp_lib.baseline_tables import one_line
from harp_lib.longbench_claims import (
    ALL,
    EVERY,
    TABLE,
    category_differences,
    category_frame,
    counterpart,
    paper_models,
    published_ranks,
    rank_frame,
)
from harp_lib.longbench_verdict import cut_to, places, verdict
from harp_lib.measure.benchmarks import CATEGORIES, LONGBENCH, Benchmark
from harp_lib.measure.longbench import METRICS
from harp_lib.measure.models import display_name
from harp_lib.published import published_ratios, published_scores
from harp_lib.results import Cells
from harp_lib.score_answers import EXAMPLE, answers_to
from harp_lib.score_claims import points
from harp_lib.score_frames import AVERAGE, score_frame
from harp_lib.score_layout import COMPETING, MISSING, in_bold, score_block
from harp_lib.score_tables import missing_scores
from harp_lib.statistics import Interval, score_estimate
from harp_lib.tables import with_error

OFFICIAL_ROWS = {"MF-en": 150, "Lcc": 500, "RB-P": 500}  # of LongBench v1; 200 of every other task
METRIC_TITLE = {  # the official names, by the functions in harp_lib.measure.longbench
    "qa_f1": "F1",
    "first_line_qa_f1": "F1, first line",
    "rouge": "ROUGE-L",
    "first_line_rouge": "ROUGE-L, first line",
    "first_line_classification": "accuracy, first line",
    "count": "accuracy",
    "retrieval": "accuracy",
    "code_similarity": "edit similarity",
}
REMOVED = "parameters removed"
EXAMPLES = (["Summarization"], ["Single-Document QA", "Multi-Document QA"])  # an answer of each is shown


def longbench_tables(cells: Cells) -> Iterator[tuple[pd.DataFrame, str, pd.DataFrame]]:
    """Every table of the experiment, its file name, and its unrounded numbers."""
    scores = score_frame(cells, benchmarks=LONGBENCH)
    table, categories, ranks = score_table(cells, scores), category_frame(scores), rank_frame(cells, scores)
    numbers = pd.concat([scores, categories.rename(columns={"kind": "task"})])
    differences, lengths, examples = category_differences(cells, scores), length_frame(cells), example_frame(cells)
    yield asked(cells), "longbench_asked", asked(cells)
    yield named_once(table), "longbench_scores", numbers
    yield paper_layout(table), "longbench_scores_paper_layout", numbers
    yield rank_table(ranks), "longbench_first_places", ranks
    yield difference_table(differences), "longbench_differences", differences
    yield answer_lengths(lengths), "longbench_answer_lengths", lengths
    yield answer_examples(examples), "longbench_answers", examples
    if scores["failed"].notna().any():
        yield missing_scores(scores), "longbench_missing_scores", missing_scores(scores)
    claims = verdict(cells)
    yield claims, "longbench_verdict", claims


def official_rows(task: str) -> int:
    """How many rows LongBench v1 has of a task, as the paper prints it."""
    return OFFICIAL_ROWS.get(task, 200)


def official_new_tokens(benchmark: Benchmark) -> int:
    """How many tokens an answer may have, from lm-eval's file of the task."""
    (file,) = benchmark.subtasks().values()
    return int(re.search(r"max_gen_toks: (\d+)", file.read_text(encoding="utf-8")).group(1))


def asked(cells: Cells) -> pd.DataFrame:
    """What each task is made of, here and officially."""
    models, rows = list(dict.fromkeys(model for model, *_ in cells)), []
    heads = {model: f"tokens of a prompt, {display_name(model)}" for model in models}
    heads = heads if len(models) > 1 else dict.fromkeys(models, "tokens of a prompt")
    for name, benchmark in LONGBENCH.items():
        stored = {key: cell for key, cell in cells.items() if key[2] == name}
        if not stored:
            continue
        cell = next((cell for cell in stored.values() if "failed" not in cell["result"]), next(iter(stored.values())))
        result = cell["result"]
        rows.append(
            {
                "category": benchmark.kind,
                "task": benchmark.title,
                "name in lm-eval": name,
                "version": ", ".join(f"{version:g}" for version in result.get("versions", {}).values()),
                "metric": METRIC_TITLE[METRICS[name]],
                "questions": str(len(result["scores"])) if "scores" in result else MISSING,
                "questions in LongBench": str(official_rows(benchmark.title)),
                "new tokens": str(cell["inputs"].get("new_tokens") or official_new_tokens(benchmark)),
                "new tokens in LongBench": str(official_new_tokens(benchmark)),
            }
            | {head: _prompts(stored, model) for model, head in heads.items()}
        )
    return pd.DataFrame(rows)


def _prompts(stored: Cells, model: str) -> str:
    """The median length of the prompts of a task, and how many of them were cut."""
    for (name, *_), cell in stored.items():
        if name == model and "failed" not in cell["result"]:
            tokens, limit = np.array(cell["result"]["prompt_tokens"]), cut_to(cell["inputs"], cell["result"])
            return f"{np.median(tokens):,.0f} ({(tokens > limit).sum()} of {len(tokens)} cut to {limit:,})"
    return MISSING


def score_table(cells: Cells, scores: pd.DataFrame) -> pd.DataFrame:
    """Scores ± standard errors, tasks by methods: each model of ours, then the paper's.

    Of the methods that remove as many parameters the best is bold: in our blocks where :func:`.score_layout.leader`
    finds one and the task is not at the floor, in the paper's where the printed score is the highest. The paper prints
    no averages; these are of its printed scores.
    """
    blocks = [_our_block(cells, part, model) for model, part in scores.groupby("model", sort=False)]
    blocks += [_published_block(model) for model in dict.fromkeys(map(counterpart, scores["model"].unique()))]
    return pd.concat(blocks, ignore_index=True).fillna("")


def named_once(table: pd.DataFrame) -> pd.DataFrame:
    """A table as it is shown: with the name of a model in the first row of its block only."""
    return table.assign(model=table["model"].mask(table["model"].duplicated(), ""))


def _our_block(cells: Cells, part: pd.DataFrame, model: str) -> pd.DataFrame:
    methods, blocks = _methods(), []
    for kind, mine in [*part.groupby("kind", sort=False), (ALL, part.assign(kind=ALL))]:
        block = pd.DataFrame(score_block(cells, model, mine, methods, COMPETING, LONGBENCH, bold_at_floor=False))
        block = block.loc[[AVERAGE]] if kind == ALL else block
        blocks.append(block.rename_axis("task").reset_index().assign(category=kind))
    removed = part.groupby("method")["removed_fraction"].first().reindex(methods)
    shown = {method: MISSING if np.isnan(share) else f"{100 * share:.2f} %" for method, share in removed.items()}
    return _titled(display_name(model), pd.concat([*blocks, pd.DataFrame([{"task": REMOVED} | shown])]))


def _published_block(model: str) -> pd.DataFrame:
    block, rows = published_scores(TABLE, model), []
    sections = {kind: list(tasks.values()) for kind, tasks in CATEGORIES.items()} | {ALL: list(block.columns)}
    for kind, tasks in sections.items():
        lines = {} if kind == ALL else {task: [task] for task in tasks}
        for task, of in (lines | {AVERAGE: tasks}).items():
            means = block[of].mean(axis=1)
            best = means[means.index.isin(COMPETING)].max()
            shown = {method: f"{value:.2f}" for method, value in means.items()}
            bold = {method for method in COMPETING if method in means and means[method] == best}
            shown = {method: in_bold(text) if method in bold else text for method, text in shown.items()}
            questions = sum(map(official_rows, of))
            rows.append({"category": kind, "task": task} | shown | {"questions": f"{questions:,}"})
    removed = {method: f"{published_ratios()[model][method]:.1f} %" for method in block.index}
    return _titled(f"{model} (paper)", pd.DataFrame([*rows, {"task": REMOVED} | removed]))


def _titled(name: str, block: pd.DataFrame) -> pd.DataFrame:
    """A block with its model, columns in order, and methods called as in every table."""
    columns = ["category", "task", *_methods(), "questions", "at the floor"]
    block = block.reindex(columns=columns).rename(columns=TITLE)
    block.insert(0, "model", name)
    return block


def _methods() -> list[str]:
    """In the order of the paper's rows."""
    return list(published_scores(TABLE, paper_models()[0]).index)


def paper_layout(table: pd.DataFrame) -> pd.DataFrame:
    """:func:`score_table` as the paper prints it: methods by tasks, six categories, one average of all tasks."""
    rows = []
    for model, block in table.groupby("model", sort=False):
        lines = block[(block["task"] != AVERAGE) | (block["category"] == ALL)].set_index("task")
        across = lines.drop(columns=["model", "category"]).T
        category = lines["category"].where(~lines["category"].duplicated(), "")
        across = pd.concat([category.to_frame("category").T, across]).drop(columns=REMOVED)
        across.insert(0, REMOVED, lines.drop(columns="category").loc[REMOVED].reindex(across.index).fillna(""))
        empty = (across == "").all(axis=1)
        rows.append(across[~empty].rename_axis("method").reset_index().assign(model=model))
    whole = pd.concat(rows, ignore_index=True)
    return whole[["model", *whole.columns.drop("model")]].rename_axis(columns=None)


def rank_table(ranks: pd.DataFrame) -> pd.DataFrame:
    """First places of each method, alone and tied; ours with 95 % intervals of a bootstrap, then the paper's."""
    rows = []
    for (model, among, of), part in ranks.groupby(["model", "among", "of"], sort=False):
        if not part["tasks"].iloc[0]:
            continue
        about = {"model": display_name(model), "among": among, "counted on": f"{part['tasks'].iloc[0]} {of}"}
        rows.append(about | {TITLE[row["method"]]: _places(row) for row in part.to_dict("records")})
    for (model, among), part in published_ranks().groupby(["model", "among"], sort=False):
        about = {"model": f"{model} (paper)", "among": among, "counted on": f"{part['tasks'].iloc[0]} {EVERY}"}
        rows.append(about | {TITLE[row["method"]]: _places(row) for row in part.to_dict("records")})
    titles = [TITLE[method] for method in _methods() if method != "dense"]
    return pd.DataFrame(rows).reindex(columns=["model", "among", "counted on", *titles]).fillna("")


def _places(row: Mapping) -> str:
    if np.isnan(row.get("low", np.nan)):
        return places(row)
    return f"{places(row)} [{row['low']:.0f}, {row['high']:.0f}], most in {100 * row['most']:.0f} %"


def difference_table(differences: pd.DataFrame) -> pd.DataFrame:
    """By how many points each method scores higher than HARP and than HARP+FLAP, by category, with 95 % intervals."""
    rows = []
    for (model, reference), part in differences.groupby(["model", "reference"], sort=False):
        name = {"model": display_name(model), "against": TITLE[reference]}
        for method, mine in part.groupby("method", sort=False):
            shown = {row.kind: points(Interval(row.change, row.low, row.high)) for row in mine.itertuples()}
            rows.append(name | {"method": TITLE[method]} | shown)
        counts = part.groupby("kind", sort=False)["questions"].max()
        rows.append(name | {"method": "questions"} | {kind: str(count) for kind, count in counts.items()})
    return pd.DataFrame(rows).fillna(MISSING)


def length_frame(cells: Cells) -> pd.DataFrame:
    """Lengths of the answers.

    Columns: model, method, task, tokens (mean), error, limit, empty (answers without any token), full (answers that
    are as long as the limit), questions.
    """
    rows = []
    for (model, method, task), cell in cells.items():
        if tokens := cell["result"].get("answer_tokens"):
            limit = cell["inputs"].get("new_tokens") or official_new_tokens(LONGBENCH[task])
            empty, full = sum(count == 0 for count in tokens), sum(count >= limit for count in tokens)
            about = (*score_estimate(tokens), limit, empty, full, len(tokens))
            rows.append((model, method, LONGBENCH[task].title, *about))
    columns = ["model", "method", "task", "tokens", "error", "limit", "empty", "full", "questions"]
    return ordered(pd.DataFrame(rows, columns=columns))


def answer_lengths(lengths: pd.DataFrame) -> pd.DataFrame:
    """Mean length of the answers in tokens, with its standard error; how many are empty, how many end at the limit."""
    rows = []
    for model, part in lengths.groupby("model", sort=False):
        for task, mine in part.groupby("task", sort=False):
            shown = {TITLE[row.method]: with_error(row.tokens, row.error) for row in mine.itertuples()}
            limit = {"new tokens at most": str(mine["limit"].iloc[0])}
            rows.append({"model": display_name(model), "task": task} | shown | limit)
        sums = part.groupby("method", sort=False)[["empty", "full", "questions"]].sum()
        for count, title in (("empty", "empty answers"), ("full", "as long as the limit")):
            shown = {TITLE[method]: f"{row[count]} of {row['questions']}" for method, row in sums.iterrows()}
            rows.append({"model": display_name(model), "task": title} | shown)
    order = [TITLE[method] for method in _methods()]
    table = pd.DataFrame(rows).reindex(columns=["model", "task", *order, "new tokens at most"])
    return table.astype(object).fillna("")  # a method that is missing altogether is a column of floats


def example_frame(cells: Cells) -> pd.DataFrame:
    """Each method's answer to one question that asks for a summary and to one that asks for a fact.

    The tasks are those with the highest dense score of those above the floor, or of all where none is; the questions
    are the ones that the dense model answers best.

    Columns: model, task, question (its number), method, score (0 to 1), tokens, answer.
    """
    rows = []
    for model in dict.fromkeys(model for model, *_ in cells):
        for kinds in EXAMPLES:
            tasks = {name: benchmark for name, benchmark in LONGBENCH.items() if benchmark.kind in kinds}
            rows += answers_to(cells, model, tasks, "scores", _methods())
    return pd.DataFrame(rows, columns=EXAMPLE)


def answer_examples(examples: pd.DataFrame) -> pd.DataFrame:
    """The beginning of each method's answers to the same questions; · stands for marks and line ends."""
    return pd.DataFrame(
        {
            "model": display_name(row.model),
            "question": f"{row.task}, {row.question}",
            "method": TITLE[row.method],
            "score": f"{100 * row.score:.0f}",
            "tokens": row.tokens,
            "the answer begins": one_line(row.answer, 160) or "(nothing)",
        }
        for row in examples.itertuples()
    )
