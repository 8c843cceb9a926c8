"""Numbers of the findings in notebook 05."""

import numpy as np
import pandas as pd

from findings.stored import CODER, GEMMA, MODELS, SMOLLM, finding
from harp_lib import config
from harp_lib.evaluation.benchmarks import BENCHMARKS
from harp_lib.names import BASELINES
from harp_lib.report import claims, comparisons, data, right_answers, short_tables
from harp_lib.report.scores import FLAPPED, differences, of_kind
from harp_lib.report.tables import told

BBH = "bbh_cot_fewshot"
SMALL = {"name": "small"}
GENERATION = of_kind("generation")
CHOOSING = of_kind("discriminative")


def dense_and_chance(model: str, task: str) -> tuple[list[float], list[float]]:
    """What the dense model and a guess in the right form score on each question."""
    result = data.cells("small", "main_tables")[model, "dense", task]["result"]
    return data.answered(result), data.answered(result, "chance")


def above_chance(model: str, tasks: list[str]) -> list[str]:
    """The tasks on which the dense model is shown to be above chance."""
    return [task for task in tasks if not comparisons.floor(*dense_and_chance(model, task))]


def mean_score(model: str, method: str, task: str) -> float:
    """A method's score on a task in per cent."""
    result = data.cells("small", "main_tables")[model, method, task]["result"]
    return 100 * np.mean(data.answered(result))


@finding(
    "05_main_tables.ipynb",
    "so a guess in the right form scores {:.1f} %. The dense coder scores {:.1f} % on {} questions "
    "and the dense Gemma {:.1f} % on {}, and neither is shown to be above a guess. The paper's "
    "dense LLaMA3.1-8B scores {:.1f} % there",
)
def little_to_lose():
    for model in MODELS:
        assert above_chance(model, CHOOSING) == ["piqa"]
    assert above_chance(GEMMA, GENERATION) == ["triviaqa"]
    assert sorted(above_chance(CODER, GENERATION)) == ["gsm8k", "triviaqa"]
    asked = [key[2] for key in data.cells("small", "main_tables") if key[0] == SMOLLM]
    assert not set(asked) & set(GENERATION)
    coder, guess = dense_and_chance(CODER, BBH)
    gemma, same_guess = dense_and_chance(GEMMA, BBH)
    assert round(np.mean(guess), 3) == round(np.mean(same_guess), 3)
    paper = data.paper("generation")
    is_dense = (paper["model"] == "LLaMA3.1-8B") & (paper["method"] == "dense")
    (score,) = paper[is_dense & (paper["task"] == BBH)]["value"]
    return (
        100 * np.mean(guess),
        100 * np.mean(coder),
        len(coder),
        100 * np.mean(gemma),
        len(gemma),
        score,
    )


def closest(tasks: list[str], model: str, rival: str) -> comparisons.Interval:
    """HARP+FLAP's lead over a baseline, which has to be the one with the smallest lead."""
    leads = differences(SMALL, "main_tables", {"": tasks}, FLAPPED, BASELINES)
    leads = leads[leads["model"] == model].set_index("methods")
    assert leads["value"].idxmin() == rival
    return comparisons.Interval(*leads.loc[rival, ["value", "low", "high"]])


def lead(*arguments) -> str:
    """The same with its interval, in words."""
    return told(*closest(*arguments)[:3])


WITHOUT_BBH = [task for task in GENERATION if task != BBH]
MAG_SP = "Mag-sp = LLM-Pruner = Wanda-sp"  # one plan on Gemma
WANDA = "LLM-Pruner = Wanda-sp"  # one plan on the coder


@finding(
    "05_main_tables.ipynb",
    "HARP+FLAP is {} points ahead of the closest baseline (LLM-Pruner = Wanda-sp); without BBH it "
    "is {}, which is no lead. On BBH HARP+FLAP scores {:.1f} % and the baselines {:.1f} to {:.1f} "
    "%; all of these are below the {:.1f} % of a guess",
)
def one_task_carries_the_lead():
    whole = closest(GENERATION, CODER, WANDA)
    assert whole.low > 0
    assert closest(WITHOUT_BBH, CODER, WANDA).low < 0
    baselines = [mean_score(CODER, method, BBH) for method in BASELINES]
    ours = mean_score(CODER, FLAPPED, BBH)
    guess = 100 * np.mean(dense_and_chance(CODER, BBH)[1])
    assert max(*baselines, ours) < guess
    of_all = lead(GENERATION, CODER, WANDA)
    without = lead(WITHOUT_BBH, CODER, WANDA)
    return of_all, without, ours, min(baselines), max(baselines), guess


def printed_leads(name: str) -> dict[str, float]:
    """The paper's HARP+FLAP less the best baseline, by model, of the averages it prints."""
    paper = data.paper(name)
    averages = paper[(paper["task"] == "average") & (paper["quantity"] == "score")]
    wide = averages.pivot_table("value", "model", "method")
    best = wide[[method for method in BASELINES if method in wide]].max(axis=1)
    return (wide[FLAPPED] - best).to_dict()


PAPER_MODELS = ("LLaMA3.1-8B", "Mistral-7B-v0.3", "Qwen2-7B", "Gemma2-9B")


@finding(
    "05_main_tables.ipynb",
    "On Gemma HARP+FLAP is behind the plan that Mag-sp, LLM-Pruner and Wanda-sp share: {} points, "
    "and {} without BBH. On the tasks where the dense model is above chance there is no lead "
    "either: {} on Gemma and {} on the coder. On the average of all five tasks the paper prints "
    "leads over the closest baseline of {:.1f} points (LLaMA3.1-8B), {:.1f} (Mistral-7B), {:.1f} "
    "(Qwen2-7B) and {:.1f} (Gemma2-9B). The verdict below compares tasks above chance only and "
    "gives the paper's leads on the same tasks: {} to {} points on TriviaQA alone, as for Gemma, "
    "and {} to {} on TriviaQA and GSM8K, as for the coder.",
)
def no_other_lead():
    for tasks in (GENERATION, WITHOUT_BBH):
        assert closest(tasks, GEMMA, MAG_SP).high < 0
    judged = claims.judge(config.load_profile("small"), "05")
    judged = judged[judged["id"] == "generation-parameters"].set_index("model")
    ends = ["value", "low", "high"]
    above = [told(*judged.loc[model, ends]) for model in (GEMMA, CODER)]
    paper = printed_leads("generation")
    of_paper = [paper[model] for model in PAPER_MODELS]
    gemma = (lead(GENERATION, GEMMA, MAG_SP), lead(WITHOUT_BBH, GEMMA, MAG_SP))
    same_tasks = [*least_and_most(judged, GEMMA), *least_and_most(judged, CODER)]
    return (*gemma, *above, *of_paper, *same_tasks)


def least_and_most(judged: pd.DataFrame, model: str) -> list[str]:
    """The paper's smallest and largest lead on the tasks on which a model is above chance."""
    leads = judged.loc[model, "paper"]
    return [f"{value:+.1f}".replace("-", "−") for value in (min(leads), max(leads))]


@finding(
    "05_main_tables.ipynb",
    "against the closest one the difference is {} points on SmolLM2 (LLM-Pruner), {} on Gemma "
    "(FLAP, whose plan is arbitrary there) and {} on the coder (LLM-Pruner = Wanda-sp), with {} "
    "questions each.",
)
def discriminative_averages():
    leads = differences(SMALL, "main_tables", {"": CHOOSING}, FLAPPED, BASELINES)
    assert ((leads["low"] < 0) & (leads["high"] > 0)).all()
    (questions,) = leads["questions"].unique()
    rivals = {SMOLLM: "LLM-Pruner", GEMMA: "FLAP*", CODER: WANDA}
    return [*(lead(CHOOSING, model, rival) for model, rival in rivals.items()), questions]


@finding(
    "05_main_tables.ipynb",
    "The dense SmolLM2 even has the lowest average of its rows ({:.1f} %): HARP+FLAP is {} points "
    "ahead of it, which is within noise.",
)
def dense_smollm_is_the_lowest():
    _, numbers = short_tables.averages_discriminative(SMALL | {"datasets": "hub"})
    averages = numbers[numbers["model"] == SMOLLM].set_index("method")["average"]
    assert averages.idxmin() == "dense"
    ahead = differences(SMALL, "main_tables", {"": CHOOSING}, FLAPPED, ["dense"])
    (ahead,) = ahead[ahead["model"] == SMOLLM][["value", "low", "high"]].to_numpy()
    assert ahead[1] < 0 < ahead[2]
    return averages["dense"], told(*ahead)


@finding(
    "05_main_tables.ipynb",
    "On PIQA, the one task above chance, HARP+FLAP is {:.0f} points behind the plan that Mag-sp, "
    "LLM-Pruner and Wanda-sp share on Gemma, and on the other two models no difference is "
    "significant. The paper prints an average of six tasks that is {:.1f} (LLaMA3.1-8B), {:.1f} "
    "(Mistral-7B) and {:.1f} points (Qwen2-7B) above the closest baseline's, and {:.1f} below it "
    "on Gemma2-9B; on PIQA alone, which the verdict compares, it is {} to {} points ahead.",
)
def piqa_and_the_paper():
    leads = differences(SMALL, "main_tables", {"": ["piqa"]}, FLAPPED, BASELINES)
    is_significant = (leads["low"] > 0) | (leads["high"] < 0)
    assert leads[is_significant]["model"].tolist() == [GEMMA]
    behind = closest(["piqa"], GEMMA, MAG_SP)
    assert behind.high < 0
    paper = printed_leads("discriminative")
    above = [paper[model] for model in PAPER_MODELS[:3]]
    judged = claims.judge(config.load_profile("small"), "05")
    judged = judged[judged["id"] == "discriminative-parameters"].set_index("model")
    on_piqa = least_and_most(judged, GEMMA)
    return -behind.value, *above, -paper["Gemma2-9B"], *on_piqa


@finding(
    "05_main_tables.ipynb",
    "Where answers are chosen, that share is larger by {} percentage points on the coder and by {} "
    "on Gemma, so both intervals include zero.",
)
def discriminative_against_generation():
    judged = claims.judge(config.load_profile("small"), "05")
    judged = judged[judged["id"] == "discriminative-loses-less"].set_index("model")
    for model in MODELS:
        assert not judged.loc[model, "low"] > 0
        assert not judged.loc[model, "high"] < 0
    return [told(*judged.loc[model, ["value", "low", "high"]]) for model in (CODER, GEMMA)]


@finding(
    "05_main_tables.ipynb",
    "HARP+FLAP leads in {} of {} comparisons and is led in {}. If no method were better than "
    "another, {} or {} of {} intervals would still miss zero",
)
def by_task():
    leads = comparisons_by_task()
    number = len(leads)
    by_chance = int(0.05 * number)
    ahead = (leads["low"] > 0).sum()
    behind = (leads["high"] < 0).sum()
    return ahead, number, behind, by_chance, by_chance + 1, number


def comparisons_by_task() -> pd.DataFrame:
    """HARP+FLAP against each distinct baseline, but for tasks on which both scored zero."""
    groups = {task: [task] for task in BENCHMARKS}
    leads = differences(SMALL, "main_tables", groups, FLAPPED, BASELINES)
    return leads[~leads["silent"].astype(bool)]


@finding(
    "05_main_tables.ipynb",
    "where HARP+FLAP is {:.0f} to {:.0f} points ahead, and no interval there begins below {:.0f} "
    "points.",
)
def leads_on_bbh():
    leads = comparisons_by_task()
    ahead = leads[leads["low"] > 0]
    assert set(ahead["model"]) == {CODER}
    assert set(ahead["group"]) == {BBH}
    behind = leads[leads["high"] < 0]
    of_gemma = behind[behind["model"] == GEMMA]["group"].tolist()
    assert sorted(of_gemma) == ["arc_challenge", "arc_challenge", "piqa", "triviaqa"]
    assert behind[behind["model"] == SMOLLM]["group"].tolist() == ["boolq", "boolq"]
    assert len(behind) == 6
    return ahead["value"].min(), ahead["value"].max(), np.floor(ahead["low"].min())


@finding(
    "05_main_tables.ipynb",
    "Nothing yet, because the stored results of `small` have no likelihoods so far.",
)
def no_likelihoods_yet():
    answers = right_answers.right_answers("small", BENCHMARKS)
    assert answers.empty, "there are likelihoods now: say in the notebook what they show"
    return []
