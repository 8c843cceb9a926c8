"""Numbers of the findings in notebook 07."""

from functools import cache

import pandas as pd

from findings.notebook_05 import SMALL, WANDA
from findings.notebook_05_likelihood import by_likelihood, likelier
from findings.stored import CODER, all_right_answers
from harp_lib.evaluation.benchmarks import CATEGORIES, LONGBENCH
from harp_lib.names import BASELINES
from harp_lib.report import comparisons, data, likelihoods
from harp_lib.report.scores import FLAPPED, answers_of, differences
from harp_lib.report.tables import told


def too_few_questions():
    answers = answers_of(SMALL, "longbench")
    assert {model for model, _, _ in answers} == {CODER}
    counts = [len(answers[key]) for key in answers if key[1] == "dense"]
    leads = differences(SMALL, "longbench", {"": list(LONGBENCH)}, FLAPPED, BASELINES)
    assert ((leads["low"] < 0) & (leads["high"] > 0)).all()
    leads = leads.set_index("methods")
    assert leads["value"].idxmin() == WANDA
    closest = told(*comparisons.Interval(*leads.loc[WANDA, ["value", "low", "high"]])[:3])
    total = sum(counts)
    return total, len(counts), len(LONGBENCH), max(counts), total, closest


RETRIEVAL = "longbench_passage_retrieval_en"
SHARED = "llm-pruner"  # the plan that LLM-Pruner and Wanda-sp share


@cache
def bits_added() -> pd.DataFrame:
    """Bits per byte that methods add to the coder's: by category, and on average of all tasks."""
    groups = {**CATEGORIES, "average": list(LONGBENCH)}
    changes = likelihoods.changes_against_dense(SMALL, groups)
    assert set(changes["model"]) == {CODER}
    return changes.set_index(["group", "method"])


def of_baselines(group: str) -> list[float]:
    """The fewest and the most bits that a baseline adds."""
    added = bits_added()["value"][group][list(BASELINES)]
    return [added.min(), added.max()]


def behind(rival: str, tasks: list[str]) -> list[float]:
    """How many more bits than a rival HARP+FLAP needs, with an interval."""
    asked = set(all_right_answers()["task"])
    return list(likelier(CODER, rival, FLAPPED, [task for task in tasks if task in asked])[:3])


def behind_by_likelihood():
    stored = data.cells("small", "likelihoods")
    asked = {task for model, method, task in stored if task in LONGBENCH}
    assert asked == {task for _, _, task in data.cells("small", "longbench")}
    inputs = stored[CODER, "dense", RETRIEVAL]["inputs"]
    scores_read = data.cells("small", "longbench")[CODER, "dense", RETRIEVAL]["inputs"]
    assert 2 * inputs["context"] == scores_read["context"]
    ours = bits_added().loc["average", FLAPPED]
    assert bits_added()["value"]["average"][list(BASELINES)].idxmin() == "flap"
    intervals = [behind(rival, list(LONGBENCH)) for rival in ("flap", SHARED, "mag-sp")]
    assert min(low for _, low, _ in intervals) > 0
    for method in ("harp", "harp+refit"):
        for rival in BASELINES:
            assert likelier(CODER, rival, method, sorted(asked)).low > 0
    return (
        *(int(ours["questions"]), len(asked), inputs["context"]),
        *(ours["value"], ours["low"], ours["high"]),
        *of_baselines("average"),
        *(end for interval in intervals for end in interval),
    )


def behind_most_where_something_is_looked_up():
    assert RETRIEVAL in CATEGORIES["Synthetic"]
    of_ours = bits_added()["value"].xs(FLAPPED, level="method").sort_values()
    assert list(of_ours.index[-2:]) == ["Multi-Document QA", "Synthetic"]
    retrieval = bits_added().loc["Synthetic", FLAPPED]
    documents = bits_added().loc["Multi-Document QA", FLAPPED]
    single = bits_added().loc["Single-Document QA", FLAPPED]
    leads = {rival: behind(rival, CATEGORIES["Multi-Document QA"]) for rival in BASELINES}
    assert [rival for rival, (_, low, _) in leads.items() if low > 0] == ["flap"]
    for rival in BASELINES:
        _, low, high = behind(rival, CATEGORIES["Single-Document QA"])
        assert low < 0 < high
        assert behind(rival, [RETRIEVAL])[1] > 0
    others = [task for task in LONGBENCH if task != RETRIEVAL]
    _, low, high = behind("mag-sp", others)
    assert low < 0 < high
    without = [behind(rival, others) for rival in ("flap", SHARED)]
    assert min(low for _, low, _ in without) > 0
    fewest, most = of_baselines("Multi-Document QA")
    return (
        *(retrieval["value"], *of_baselines("Synthetic"), int(retrieval["questions"])),
        *(int(documents["questions"]), documents["value"], -documents["low"], documents["high"]),
        *(-fewest, most),
        int(single["questions"]),
        *(end for interval in without for end in interval),
        int(by_likelihood("longbench-mag-sp").loc[CODER, "n"]),
    )
