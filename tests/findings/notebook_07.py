"""Numbers of the findings in notebook 07."""

from functools import cache

import pandas as pd

from findings.notebook_05 import SMALL, WANDA
from findings.notebook_05_likelihood import by_likelihood, likelier
from findings.stored import CODER, all_right_answers, finding
from harp_lib.evaluation.benchmarks import CATEGORIES, LONGBENCH
from harp_lib.names import BASELINES
from harp_lib.report import comparisons, data, likelihoods
from harp_lib.report.scores import FLAPPED, answers_of, differences
from harp_lib.report.tables import told


@finding(
    "07_longbench.ipynb",
    "we have {} questions in {} of the {} tasks, at most {} in a task, for one model (the coder). "
    "Over all {} the difference of HARP+FLAP to each baseline is within noise; the closest is the "
    "plan that LLM-Pruner and Wanda-sp share, {} points.",
)
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


@finding(
    "07_longbench.ipynb",
    "The verdict's first row counts only the {} tasks on which the dense coder is above chance, "
    "which have {} of the {} questions.",
)
def tasks_above_chance():
    source = data.Source("small", "longbench", CODER, data.cells)
    answers = source.answers((FLAPPED, *BASELINES), LONGBENCH)
    kept = data.above(answers)
    questions = sum(len(scores) for scores in kept.values())
    return len(kept), questions, sum(len(scores) for scores in answers.values())


def printed(model: str) -> pd.DataFrame:
    """The paper's scores of a model, task × method."""
    paper = data.paper("longbench")
    of_model = paper[(paper["model"] == model) & (paper["quantity"] == "score")]
    return of_model.pivot_table("value", "task", "method")


def printed_leads(model: str) -> tuple[int, dict[str, float]]:
    """In how many tasks the paper's HARP+FLAP is first, and its lead in each category."""
    scores = printed(model)
    baselines = [method for method in BASELINES if method in scores]
    first = (scores[FLAPPED] > scores[baselines].max(axis=1)).sum()
    leads = {}
    for category, tasks in CATEGORIES.items():
        means = scores.loc[tasks].mean()
        leads[category] = means[FLAPPED] - means[baselines].max()
    return first, leads


@finding(
    "07_longbench.ipynb",
    "HARP+FLAP is first in {} of 16 tasks on Mistral-7B, which is most, and in {} of 16 on "
    "LLaMA3.1-8B, which is not. Multi-document questions are its best category on LLaMA3.1-8B, "
    "{:.1f} points ahead of the best baseline, but on Mistral-7B it is {:.1f} points ahead there "
    "and {:.1f} points in summarization. In code it is {:.0f} and {:.0f} points behind. On "
    "MultiNews the dense LLaMA3.1-8B scores {:.2f}",
)
def what_the_paper_prints():
    first_llama, llama = printed_leads("LLaMA3.1-8B")
    first_mistral, mistral = printed_leads("Mistral-7B-v0.3")
    documents = "Multi-Document QA"
    assert max(llama, key=llama.get) == documents
    assert max(mistral, key=mistral.get) == "Summarization"
    assert first_llama <= 16 / 2 < first_mistral
    return (
        first_mistral,
        first_llama,
        llama[documents],
        mistral[documents],
        mistral["Summarization"],
        -llama["Code"],
        -mistral["Code"],
        printed("LLaMA3.1-8B").loc["longbench_multi_news", "dense"],
    )


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


@finding(
    "07_longbench.ipynb",
    "The coder was given {} reference answers in the same {} tasks, after prompts cut to {:,} "
    "tokens, half of what the scores read. On average over the tasks HARP+FLAP adds {:.2f} "
    "[{:.2f}, {:.2f}] bits per byte, and the baselines {:.2f} to {:.2f}. It is behind each of "
    "them: by {:.2f} [{:.2f}, {:.2f}] bits behind FLAP, the best, by {:.2f} [{:.2f}, {:.2f}] "
    "behind the plan that LLM-Pruner and Wanda-sp share, and by {:.2f} [{:.2f}, {:.2f}] behind "
    "Mag-sp. Plain HARP and HARP with refitted weights are behind all of them, too.",
)
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


@finding(
    "07_longbench.ipynb",
    "HARP+FLAP adds most bits in passage retrieval, where it has to say which paragraph a summary "
    "is of: {:.2f}, and the baselines {:.2f} to {:.2f}. These {} questions are too few for a row "
    "of the figure, but count in its average. On the two tasks with several documents ({} "
    "questions), for which the paper claims the largest lead, it adds {:.2f} [−{:.2f}, {:.2f}], "
    "and the baselines −{:.2f} to {:.2f}; it is behind FLAP, and no difference to the other two "
    "is shown. On single documents ({} questions) no difference to a baseline is shown. Without "
    "passage retrieval HARP+FLAP is still behind FLAP and the shared plan, by {:.2f} [{:.2f}, "
    "{:.2f}] and {:.2f} [{:.2f}, {:.2f}]; to Mag-sp no difference is shown. The verdict below on "
    "the claim about Mag-sp and MF-en (MultiFieldQA) rests by likelihood on the {} questions of "
    "that task.",
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


@finding(
    "07_longbench.ipynb",
    "On the short prompts of notebook 05 no difference between the coder's HARP+FLAP and the best "
    "baseline is shown by likelihood: it is {:.2f} [−{:.2f}, {:.2f}] bits per byte behind.",
)
def on_short_prompts():
    row = by_likelihood("generation-parameters").loc[CODER]
    assert row["low"] < 0 < row["high"]
    return -row["value"], row["high"], -row["low"]
