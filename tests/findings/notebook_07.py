"""Numbers of the findings in notebook 07."""

import pandas as pd

from findings.notebook_05 import SMALL, WANDA
from findings.stored import CODER, finding
from harp_lib.evaluation.benchmarks import CATEGORIES, LONGBENCH
from harp_lib.names import BASELINES
from harp_lib.report import comparisons, data, figures_scores, right_answers
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


@finding(
    "07_longbench.ipynb",
    "Nothing yet, because without the hub no category has enough questions, and because the stored "
    "results of `small` have no likelihoods of LongBench's answers so far.",
)
def no_likelihoods_yet():
    answers = right_answers.right_answers("small", LONGBENCH)
    assert answers.empty, "there are likelihoods now: say in the notebook what they show"
    assert figures_scores.longbench_differences(SMALL) is None
    return []
