"""Numbers of the findings in notebook 05, on the likelihood of right answers."""

import pandas as pd

from findings.notebook_05 import BBH, CHOOSING, GENERATION, MAG_SP, SMALL, WITHOUT_BBH
from findings.stored import (
    ALL_MODELS,
    CODER,
    GEMMA,
    LARGER,
    SMOLLM,
    all_right_answers,
    finding,
    verdict_on,
)
from harp_lib.names import BASELINES
from harp_lib.report import comparisons, data, likelihoods, right_answers
from harp_lib.report.scores import FLAPPED

MATH = "leaderboard_math_hard"
REFIT = "harp+refit"


def written(model: str) -> list[str]:
    """The tasks with written answers whose likelihoods a model has."""
    if model == SMOLLM:
        return WITHOUT_BBH
    return GENERATION


def by_likelihood(claim: str) -> pd.DataFrame:
    """What decides a claim by likelihood on each model: the columns value, low, high and about."""
    rows = verdict_on(claim)
    return rows.filter(like="by likelihood ").rename(columns=lambda name: name.split()[-1])


def behind_by(claim: str, model: str, rival: str) -> list[float]:
    """By how much HARP is behind a rival by likelihood, with its interval, all of it above zero."""
    row = by_likelihood(claim).loc[model]
    assert rival in row["about"]
    assert row["high"] < 0
    return [-row["value"], -row["high"], -row["low"]]


def is_open(claim: str, model: str) -> bool:
    """Whether likelihood does not decide a lead."""
    row = by_likelihood(claim).loc[model]
    return row["low"] < 0 < row["high"]


@finding(
    "05_main_tables.ipynb",
    "HARP+FLAP loses more of the right choice's margin than the best baseline by {:.2f} [{:.2f}, "
    "{:.2f}] nats on SmolLM2 (LLM-Pruner) and by {:.2f} [{:.2f}, {:.2f}] on Gemma (the plan that "
    "three baselines share). On the coder the difference, {:.2f} [−{:.2f}, {:.2f}], is within "
    "noise. The results on SmolLM2 and Gemma depend on one task: without OpenBookQA, where no "
    "dense model is above chance, the differences are {:.2f} [−{:.2f}, {:.2f}] and {:.2f} "
    "[−{:.2f}, {:.2f}] nats",
)
def margins():
    claim = "discriminative-parameters"
    assert is_open(claim, CODER)
    coder = by_likelihood(claim).loc[CODER]
    others = [task for task in CHOOSING if task != "openbookqa"]
    without = []
    for model, rival in ((SMOLLM, "llm-pruner"), (GEMMA, "mag-sp")):
        behind = likelier(model, rival, FLAPPED, others)
        assert behind.low < 0 < behind.high
        without += [behind.value, -behind.low, behind.high]
    return (
        *behind_by(claim, SMOLLM, "LLM-Pruner"),
        *behind_by(claim, GEMMA, MAG_SP),
        *(-coder["value"], coder["high"], -coder["low"]),
        *without,
    )


@finding(
    "05_main_tables.ipynb",
    "HARP+FLAP loses less of the margin than every baseline, by {:.2f} [{:.2f}, {:.2f}] nats than "
    "the closest one (Mag-sp) and by {:.2f} [{:.2f}, {:.2f}] than LLM-Pruner. HARP itself loses "
    "{:.2f} [−{:.2f}, {:.2f}] nats against the dense model, so no loss is shown, and a small one "
    "not excluded. The lead over Mag-sp depends on ARC-Challenge: without that task it is {:.2f} "
    "[−{:.2f}, {:.2f}].",
)
def margins_of_the_larger_model():
    leads = {rival: likelier(LARGER, FLAPPED, rival, CHOOSING) for rival in BASELINES}
    assert min(lead.low for lead in leads.values()) > 0
    assert leads["mag-sp"] == min(leads.values(), key=lambda lead: lead.value)
    lost = likelier(LARGER, "dense", "harp", CHOOSING)
    others = [task for task in CHOOSING if task != "arc_challenge"]
    without = likelier(LARGER, FLAPPED, "mag-sp", others)
    numbers = [*leads["mag-sp"][:3], *leads["llm-pruner"][:3]]
    for interval in (lost, without):
        assert interval.low < 0 < interval.high
        numbers += [interval.value, -interval.low, interval.high]
    return numbers


def likelier(model: str, method: str, other: str, tasks: list[str]) -> comparisons.Interval:
    """How much likelier a method finds right answers than another (nats, or bits per byte)."""
    answers = all_right_answers()
    answers = answers[answers["model"] == model]
    pairs = []
    for task in tasks:
        both = right_answers.paired(answers, task, [method, other])
        sign = right_answers.measure_of(task).sign
        pairs.append((sign * both[method], sign * both[other]))
    return comparisons.paired_mean_difference(pairs)


@finding(
    "05_main_tables.ipynb",
    "at equal parameters, HARP+FLAP needs more bits than the best baseline on SmolLM2, {:.3f} "
    "[{:.3f}, {:.3f}] per byte, on Gemma, {:.3f} [{:.3f}, {:.3f}], and on the 1.5B, {:.3f} "
    "[{:.3f}, {:.3f}]; on the coder no difference is shown. Plain HARP prunes as many heads as "
    "the baselines and removes fewer parameters than they do. It is ahead of the best baseline on "
    "Gemma by {:.3f} [{:.3f}, {:.3f}] bits per byte, and on the 1.5B behind it by {:.3f} [{:.3f}, "
    "{:.3f}]; on SmolLM2 and the coder no difference is shown.",
)
def bits():
    assert is_open("generation-parameters", CODER)
    assert is_open("generation-heads", SMOLLM)
    assert is_open("generation-heads", CODER)
    ahead = by_likelihood("generation-heads").loc[GEMMA]
    assert ahead["low"] > 0
    return (
        *behind_by("generation-parameters", SMOLLM, "Wanda-sp"),
        *behind_by("generation-parameters", GEMMA, MAG_SP),
        *behind_by("generation-parameters", LARGER, "Wanda-sp"),
        *ahead[["value", "low", "high"]],
        *behind_by("generation-heads", LARGER, "Wanda-sp"),
    )


def bits_added(task: str | None = None) -> pd.DataFrame:
    """Bits per byte that methods add to the dense model's, model × method; the average without."""
    tasks = GENERATION if task is None else [task]
    changes = likelihoods.changes_against_dense(SMALL, {"": tasks})
    return changes.pivot_table("value", "model", "method")


@finding(
    "05_main_tables.ipynb",
    "For the worked solutions of GSM8K HARP+FLAP adds fewer bits than any baseline on SmolLM2 "
    "({:.2f}, the baselines {:.2f} to {:.2f}) and on the coder ({:.2f}, the baselines {:.2f} to "
    "{:.2f}). For the short answers of TriviaQA and NaturalQuestions it adds more than any "
    "baseline on both models; only on the coder's TriviaQA are the differences to FLAP, "
    "LLM-Pruner and Wanda-sp within noise.",
)
def solutions_and_facts():
    numbers = []
    for task in ("gsm8k", "nq_open", "triviaqa"):
        added = bits_added(task)
        ours = added[FLAPPED]
        baselines = added[list(BASELINES)]
        for model in (SMOLLM, CODER):
            leads = {rival: likelier(model, FLAPPED, rival, [task]) for rival in BASELINES}
            if task == "gsm8k":
                assert all(lead.low > 0 for lead in leads.values())
                of_baselines = baselines.loc[model]
                numbers += [ours[model], of_baselines.min(), of_baselines.max()]
            else:
                assert all(lead.value < 0 for lead in leads.values())
                not_shown = [rival for rival, lead in leads.items() if lead.high >= 0]
                is_exception = (model, task) == (CODER, "triviaqa")
                assert set(not_shown) == (set(BASELINES) - {"mag-sp"} if is_exception else set())
    return numbers


@finding(
    "05_main_tables.ipynb",
    "For the worked solutions of MATH it adds fewer bits than any baseline on the coder ({:.2f}, "
    "the baselines {:.2f} to {:.2f}); on SmolLM2 ({:.2f}, the baselines {:.2f} to {:.2f}) it is "
    "ahead of Mag-sp and FLAP only, and no difference to the other two is shown.",
)
def solutions_of_math():
    added = bits_added(MATH)
    numbers = []
    for model in (CODER, SMOLLM):
        leads = {rival: likelier(model, FLAPPED, rival, [MATH]) for rival in BASELINES}
        is_ahead = {rival for rival, lead in leads.items() if lead.low > 0}
        assert is_ahead == (set(BASELINES) if model == CODER else {"mag-sp", "flap"})
        assert all(lead.high > 0 for lead in leads.values())
        of_baselines = added[list(BASELINES)].loc[model]
        numbers += [added[FLAPPED][model], of_baselines.min(), of_baselines.max()]
    return numbers


@finding(
    "05_main_tables.ipynb",
    "On Gemma, where three baselines make one plan and FLAP's is arbitrary, HARP+FLAP adds more "
    "bits than both on {} of the {} tasks; on MATH it adds fewer than FLAP, and on BBH no "
    "difference to either is shown.",
)
def most_bits_on_gemma():
    most = 0
    for task in GENERATION:
        behind = {rival: -likelier(GEMMA, FLAPPED, rival, [task]).high for rival in BASELINES}
        if min(behind.values()) > 0:
            most += 1
        elif task == BBH:
            assert max(behind.values()) < 0
            assert all(likelier(GEMMA, FLAPPED, rival, [BBH]).low < 0 for rival in BASELINES)
        else:
            assert task == MATH
            assert {rival for rival, margin in behind.items() if margin < 0} == {"flap"}
            assert likelier(GEMMA, FLAPPED, "flap", [task]).low > 0
    return most, len(GENERATION)


@finding(
    "05_main_tables.ipynb",
    "On the 1.5B HARP+FLAP is ahead on solutions of FLAP alone, and that for GSM8K only: there it "
    "adds {:.2f} bits, FLAP {:.2f}, and the other baselines {:.2f} to {:.2f}. On TriviaQA, "
    "NaturalQuestions and MATH HARP+FLAP adds more than any baseline, though on the first two not "
    "all of these differences are outside noise.",
)
def solutions_and_facts_of_the_larger_model():
    added = {task: bits_added(task).loc[LARGER] for task in ("gsm8k", "triviaqa", "nq_open")}
    for rival in BASELINES:
        lead = likelier(LARGER, FLAPPED, rival, ["gsm8k"])
        assert (lead.low > 0) == (rival == "flap")
        assert (lead.high < 0) == (rival != "flap")
    for task in ("triviaqa", "nq_open"):
        assert added[task][FLAPPED] > added[task][list(BASELINES)].max()
    assert all(likelier(LARGER, FLAPPED, rival, [MATH]).high < 0 for rival in BASELINES)
    others = added["gsm8k"][["mag-sp", "llm-pruner", "wanda-sp"]]
    of_gsm8k = added["gsm8k"]
    return of_gsm8k[FLAPPED], of_gsm8k["flap"], others.min(), others.max()


@finding(
    "05_main_tables.ipynb",
    "Of the dense models' replies to {} questions of BBH {} come to a conclusion on Gemma, {} on "
    "the coder and {} on the 1.5B; the other questions are left out.",
)
def replies_with_a_conclusion():
    stored = data.cells("small", "likelihoods")
    conclusions = []
    questions = set()
    for model in (GEMMA, CODER, LARGER):
        result = stored[model, "dense", BBH]["result"]
        found = len(result["rows"]["question"])
        conclusions.append(found)
        questions.add(found + result["dropped"])
    assert (SMOLLM, "dense", BBH) not in stored
    (asked,) = questions
    return asked, *conclusions


@finding(
    "05_main_tables.ipynb",
    "For {} of {} answers the dense coder needs less than half a bit per byte, and for {} of {} "
    "the dense 1.5B. For the others they need {:.2f} and {:.2f} bits on average, mostly because "
    "their reasoning has led them to another answer. Of the {} answers that the dense coder finds "
    "likely, HARP+FLAP is surer than every baseline: it adds {:.2f} bits per byte, and they add "
    "{:.2f} to {:.2f}; the closest one needs {:.2f} [{:.2f}, {:.2f}] more. On the 1.5B it adds "
    "{:.2f} bits on {} such answers, and the baselines {:.2f} to {:.2f}; the closest one needs "
    "{:.2f} [{:.2f}, {:.2f}] more. So HARP's model still goes where the reasoning leads, and "
    "theirs hesitate. On the remaining {} answers of the coder the best baseline needs {:.2f} "
    "[{:.2f}, {:.2f}] bits fewer than HARP+FLAP, and on the remaining {} of the 1.5B {:.2f} "
    "[{:.2f}, {:.2f}], probably because a model that hesitates loses less by a wrong conclusion. "
    "On Gemma neither difference is shown. So BBH widens the gap on the 1.5B: without it "
    "HARP+FLAP is {:.3f} [{:.3f}, {:.3f}] behind Wanda-sp.",
)
def conclusions_of_bbh():
    coder = BbhAnswers(CODER)
    larger = BbhAnswers(LARGER)
    gemma = BbhAnswers(GEMMA)
    numbers = []
    for bbh in (coder, larger):
        numbers += [bbh.is_sure.sum(), len(bbh.bits)]
    numbers += [bbh.bits["dense"][~bbh.is_sure].mean() for bbh in (coder, larger)]
    numbers += [coder.is_sure.sum(), *coder.added_where_sure()]
    ours, *others = larger.added_where_sure()
    numbers += [ours, larger.is_sure.sum(), *others]
    for bbh in (coder, larger):
        best = min(bbh.leads(~bbh.is_sure))
        assert best.high < 0
        numbers += [(~bbh.is_sure).sum(), -best.value, -best.high, -best.low]
    of_shared_plan = gemma.leads(gemma.is_sure)[0], gemma.leads(~gemma.is_sure)[0]
    assert all(lead.low < 0 < lead.high for lead in of_shared_plan)
    return *numbers, *likelier(LARGER, "wanda-sp", FLAPPED, WITHOUT_BBH)[:3]


class BbhAnswers:
    """Bits per byte of a model's answers to BBH, question × method."""

    def __init__(self, model: str) -> None:
        answers = all_right_answers()
        answers = answers[answers["model"] == model]
        self.bits = right_answers.paired(answers, BBH, ["dense", FLAPPED, *BASELINES])
        self.is_sure = self.bits["dense"] < 0.5  # the dense model's reasoning led to the answer

    def added_where_sure(self) -> tuple[float, ...]:
        """Bits that HARP+FLAP adds, the baselines at least and at most, and the smallest lead."""
        sure = self.bits[self.is_sure]
        added = sure.sub(sure["dense"], axis=0).mean()
        of_baselines = added[list(BASELINES)]
        leads = self.leads(self.is_sure)
        assert min(lead.low for lead in leads) > 0
        return added[FLAPPED], of_baselines.min(), of_baselines.max(), *min(leads)[:3]

    def leads(self, is_meant: pd.Series) -> list[comparisons.Interval]:
        """How many fewer bits HARP+FLAP needs than each baseline on some of the questions."""
        some = self.bits[is_meant]
        return [
            comparisons.paired_mean_difference([(some[rival], some[FLAPPED])])
            for rival in BASELINES
        ]


@finding(
    "05_main_tables.ipynb",
    "On average over the tasks it adds {:.2f} bits per byte on SmolLM2 and {:.2f} on Gemma, and "
    "is ahead of every baseline by {:.3f} [{:.3f}, {:.3f}] and {:.3f} [{:.3f}, {:.3f}] or more. "
    "It is ahead of HARP itself by {:.3f} [{:.3f}, {:.3f}] on SmolLM2; on Gemma no difference to "
    "HARP is shown. On the coder BBH decides. Without it the refit is ahead of every baseline, by "
    "{:.3f} [{:.3f}, {:.3f}] or more, and no difference to HARP is shown; with it, LLM-Pruner = "
    "Wanda-sp is ahead of the refit by {:.3f} [{:.3f}, {:.3f}], and HARP is ahead of it by {:.3f} "
    "[{:.3f}, {:.3f}]. On the 1.5B the refit adds {:.2f} bits, more than any other plan; HARP "
    "adds {:.2f}, and is ahead of it by {:.3f} [{:.3f}, {:.3f}]. Without MATH and BBH no "
    "difference to HARP is shown there.",
)
def refit_of_harps_layers():
    added = bits_added()[REFIT]
    numbers = [added[SMOLLM], added[GEMMA]]
    for model in (SMOLLM, GEMMA):
        numbers += closest_to_the_refit(model, written(model))
    to_harp = {model: likelier(model, REFIT, "harp", written(model)) for model in ALL_MODELS}
    assert to_harp[SMOLLM].low > 0
    assert to_harp[GEMMA].low < 0 < to_harp[GEMMA].high
    numbers += [*to_harp[SMOLLM][:3], *closest_to_the_refit(CODER, WITHOUT_BBH)]
    without_bbh = likelier(CODER, REFIT, "harp", WITHOUT_BBH)
    assert without_bbh.low < 0 < without_bbh.high
    for other in ("wanda-sp", "harp"):
        behind = likelier(CODER, other, REFIT, GENERATION)
        assert behind.low > 0
        numbers += behind[:3]
    for other in (*BASELINES, "harp", FLAPPED):
        assert likelier(LARGER, REFIT, other, GENERATION).high < 0
    behind = to_harp[LARGER]
    numbers += [added[LARGER], bits_added()["harp"][LARGER]]
    numbers += [-behind.value, -behind.high, -behind.low]
    others = [task for task in WITHOUT_BBH if task != MATH]
    without_both = likelier(LARGER, REFIT, "harp", others)
    assert without_both.low < 0 < without_both.high
    leads_where_chosen = []
    for model in ALL_MODELS:
        if all(likelier(model, REFIT, other, CHOOSING).low > 0 for other in BASELINES):
            leads_where_chosen.append(model)
    assert leads_where_chosen == [GEMMA, LARGER]
    return numbers


def closest_to_the_refit(model: str, tasks: list[str]) -> list[float]:
    """The refit's smallest lead over a baseline, with its interval; all its leads are shown."""
    leads = [likelier(model, REFIT, other, tasks) for other in BASELINES]
    assert min(lead.low for lead in leads) > 0
    return list(min(leads)[:3])
