"""Numbers of the findings in docs/results.md."""

import json
from collections.abc import Iterator
from itertools import product

import numpy as np

from findings import notebook_05, notebook_05_likelihood, notebook_07
from findings.stored import (
    ALL_MODELS,
    CODER,
    GEMMA,
    LARGER,
    SMOLLM,
    finding,
    judgements,
    perplexity_of,
    prefill,
)
from harp_lib.evaluation.benchmarks import BENCHMARKS
from harp_lib.names import BASELINES
from harp_lib.report import comparisons, data
from harp_lib.report.claims.findings import Outcome
from harp_lib.report.scores import FLAPPED
from harp_lib.report.tables import told


@finding(
    "docs/results.md",
    "At equal heads HARP has a lower perplexity than every baseline on Gemma: {:.1f}, where they "
    "have {:.1f} to {:.1f}. On the other three models the best baseline has a lower one: {:.1f} "
    "against HARP's {:.1f} on SmolLM2, {:.1f} against {:.1f} on the coder and {:.1f} against "
    "{:.1f} on the 1.5B.",
)
def equal_heads():
    baselines = [perplexity_of(GEMMA, method) for method in BASELINES]
    numbers = [perplexity_of(GEMMA, "harp"), min(baselines), max(baselines)]
    assert numbers[0] < numbers[1]
    for model in (SMOLLM, CODER, LARGER):
        best = min(perplexity_of(model, method) for method in BASELINES)
        of_harp = perplexity_of(model, "harp")
        assert of_harp > best
        numbers += [best, of_harp]
    return numbers


@finding(
    "docs/results.md",
    "At equal parameters HARP+FLAP has a lower perplexity than the best baseline on no model: "
    "{:.1f} against {:.1f} on Gemma, {:.1f} against {:.1f} on the coder, {:.1f} against {:.1f} on "
    "SmolLM2 and {:.1f} against {:.1f} on the 1.5B. On the 1.5B plain HARP, which removes fewer "
    "parameters, has as high a perplexity there ({:.1f}).",
)
def equal_parameters():
    numbers = []
    for model in (GEMMA, CODER, SMOLLM, LARGER):
        for corpus in ("python-docs", "wikitext"):  # on either text
            ours = perplexity_of(model, "harp+flap", corpus)
            best = min(perplexity_of(model, method, corpus) for method in BASELINES)
            assert ours > best
        numbers += [ours, best]
    return [*numbers, perplexity_of(LARGER, "harp")]


@finding(
    "docs/results.md",
    "HARP keeps most of what the dense model scores there, and every baseline falls to nearly "
    "nothing.",
)
def bbh_on_the_coder():
    stored = data.cells("small", "main_tables")
    scores = {}
    for method in ("dense", "harp", *BASELINES):
        answers = data.answered(stored[CODER, method, "bbh_cot_fewshot"]["result"])
        scores[method] = np.mean(answers)
    assert scores["harp"] > 0.75 * scores["dense"]
    assert max(scores[method] for method in BASELINES) < 0.05
    return []


@finding(
    "docs/results.md",
    "But the dense model itself is not shown to be above chance there: it scores {:.1f} % on {} "
    "questions, and a guess in the right form scores {:.1f} %.",
)
def guessing_on_bbh():
    result = data.cells("small", "main_tables")[CODER, "dense", "bbh_cot_fewshot"]["result"]
    answers = data.answered(result)
    chances = data.answered(result, "chance")
    assert comparisons.floor(answers, chances) is not None
    return 100 * np.mean(answers), len(answers), 100 * np.mean(chances)


@finding(
    "docs/results.md",
    "HARP+FLAP is {} points from LLM-Pruner on the average of four tasks. The dense 1.5B solves "
    "{:.1f} % of {} problems of GSM8K, and pruned it solves none, whichever method pruned it. The "
    "paper's largest lead on LLaMA3.1-8B is on this task: with HARP+FLAP it falls from {:.1f} % "
    "to {:.1f} %, and with the baselines to {:.1f} to {:.1f} %. Of {} questions of TriviaQA the "
    "dense 1.5B answers {:.1f} %, HARP+FLAP {:.1f} % and the baselines {:.1f} to {:.1f} %; no "
    "baseline is shown to be ahead of HARP+FLAP, and only Mag-sp to be behind.",
)
def written_by_the_larger_model():
    average = notebook_05.closest(notebook_05.GENERATION, LARGER, "LLM-Pruner")
    assert average.low < 0 < average.high
    leads = notebook_05.comparisons_by_task().query("model == @LARGER and group == 'triviaqa'")
    assert len(leads) == len(BASELINES)
    assert (leads["high"] > 0).all()
    assert leads[leads["low"] > 0]["methods"].tolist() == ["Mag-sp"]
    return (
        told(*average[:3]),
        *notebook_05.solved_of_gsm8k(),
        *notebook_05.gsm8k_in_the_paper("LLaMA3.1-8B"),
        *notebook_05.triviaqa_of_the_larger_model(),
    )


def lead_on_piqa(model: str, baseline: str) -> comparisons.Interval:
    """By how many points HARP+FLAP scores higher than a baseline."""
    stored = data.cells("small", "main_tables")
    ours = data.answered(stored[model, "harp+flap", "piqa"]["result"])
    theirs = data.answered(stored[model, baseline, "piqa"]["result"])
    return comparisons.paired_difference([(ours, theirs)]) * 100


@finding(
    "docs/results.md",
    "Where answers are chosen, SmolLM2, Gemma and the coder are above chance on one or two of six "
    "tasks: on PIQA, and Gemma on BoolQ, too. The 1.5B is on four: PIQA, ARC-Challenge, BoolQ and "
    "MMLU. On PIQA HARP+FLAP is {:.0f} points behind Mag-sp on Gemma, and no difference to a "
    "baseline is significant on the other three models. On the average of the six tasks HARP+FLAP "
    "leads every baseline on the 1.5B, the best by {:.1f} points; without MMLU no lead is "
    "shown.",
)
def multiple_choice():
    above_chance = {
        SMOLLM: ["piqa"],
        GEMMA: notebook_05.ON_GEMMA,
        CODER: ["piqa"],
        LARGER: notebook_05.ON_LARGER,
    }
    for model, tasks in above_chance.items():
        assert sorted(notebook_05.above_chance(model, notebook_05.CHOOSING)) == tasks
    for model in (SMOLLM, CODER, LARGER):
        for baseline in BASELINES:
            lead = lead_on_piqa(model, baseline)
            assert lead.low < 0 < lead.high
    behind = lead_on_piqa(GEMMA, "mag-sp")
    assert behind.high < 0
    notebook_05.discriminative_averages()  # asserts which leads are shown
    closest = notebook_05.closest(notebook_05.CHOOSING, LARGER, "FLAP")
    return -behind.value, closest.value


@finding(
    "docs/results.md",
    "For written answers, at equal parameters, HARP+FLAP is behind the best baseline on SmolLM2, "
    "on Gemma and on the 1.5B; on the coder no difference is shown. These are averages of five "
    "tasks, on SmolLM2 of four: on SmolLM2 and the coder it is ahead of every baseline for the "
    "solutions of GSM8K, on the coder for those of MATH, too. It is behind every baseline on both "
    "for the answers to NaturalQuestions, and on SmolLM2 for those to TriviaQA. On Gemma and the "
    "1.5B it is ahead of all baselines on none of the five. For chosen answers it is behind on "
    "SmolLM2 and Gemma, but only if OpenBookQA is counted, and ahead of every baseline on the "
    "1.5B, where the lead over Mag-sp depends on ARC-Challenge; on the coder no difference is "
    "shown. At equal heads plain HARP, which removes about half as many parameters, leads on "
    "Gemma where answers are written, and is behind on the 1.5B; on SmolLM2 and the coder no "
    "difference is shown.",
)
def decided_by_likelihood():
    judged = judgements().set_index(["id", "model"])
    outcomes = judged["by likelihood"]
    for claim in ("discriminative-parameters", "generation-parameters"):
        assert outcomes[claim, SMOLLM] == outcomes[claim, GEMMA] == Outcome.NOT
        assert outcomes[claim, CODER] == Outcome.INCONCLUSIVE
    assert outcomes["generation-heads", GEMMA] == Outcome.REPRODUCED
    assert outcomes["generation-heads", LARGER] == Outcome.NOT
    for model in (SMOLLM, CODER):
        assert outcomes["generation-heads", model] == Outcome.INCONCLUSIVE
    notebook_05_likelihood.margins()  # asserts that OpenBookQA alone decides, and ...
    notebook_05_likelihood.margins_of_the_larger_model()  # ... that ARC-Challenge does
    notebook_05_likelihood.solutions_and_facts()  # asserts the opposite signs
    notebook_05_likelihood.solutions_of_math()
    for model, task in product((GEMMA, LARGER), notebook_05.GENERATION):
        leads = (
            notebook_05_likelihood.likelier(model, FLAPPED, rival, [task]) for rival in BASELINES
        )
        assert min(lead.low for lead in leads) < 0
    assert outcomes["generation-parameters", LARGER] == Outcome.NOT
    assert outcomes["discriminative-parameters", LARGER] == Outcome.REPRODUCED
    return []


@finding(
    "docs/results.md",
    "counting baselines that make the same plan once, HARP+FLAP leads a baseline in {} of {} "
    "comparisons and is led in {}. Of the {} leads {} are on BBH, with the coder, and {} on MMLU, "
    "with the 1.5B. There HARP+FLAP scores {:.1f} %, the baselines {:.1f} to {:.1f} %, and the "
    "dense model {:.1f} % ({} questions). Of the {} leads only these four, and one on TriviaQA "
    "with the 1.5B, are on a task on which the dense model is above chance. Five of the {} losses "
    "are on Gemma, one each is on SmolLM2 and on the coder.",
)
def comparisons_task_by_task():
    number = 0
    leads = []
    led = []
    for model, task, difference in differences_to_baselines():
        number += 1
        if difference.low > 0:
            leads.append((model, task))
        if difference.high < 0:
            led.append((model, task))
    on_bbh = leads.count((CODER, "bbh_cot_fewshot"))
    on_mmlu = leads.count((LARGER, "mmlu"))
    assert on_mmlu == 4
    for model, task in leads:
        is_above_chance = bool(notebook_05.above_chance(model, [task]))
        assert is_above_chance == (task in ("mmlu", "triviaqa"))
    assert leads.count((LARGER, "triviaqa")) == 1
    losers = [model for model, _ in led]
    assert [losers.count(model) for model in (GEMMA, SMOLLM, CODER)] == [5, 1, 1]
    methods = ("dense", "harp+flap", *BASELINES)
    scores = {method: notebook_05.mean_score(LARGER, method, "mmlu") for method in methods}
    of_baselines = [scores[method] for method in BASELINES]
    asked, _ = notebook_05.dense_and_chance(LARGER, "mmlu")
    return (
        *(len(leads), number, len(led), len(leads), on_bbh, on_mmlu, scores["harp+flap"]),
        *(min(of_baselines), max(of_baselines), scores["dense"], len(asked)),
        *(len(leads), len(led)),
    )


def differences_to_baselines() -> Iterator[tuple[str, str, comparisons.Interval]]:
    """How much higher HARP+FLAP scores than each distinct baseline, by model and task."""
    stored = data.cells("small", "main_tables")
    plans = data.cells("small", "baselines")
    for model in ALL_MODELS:
        distinct = {}  # the last one of the baselines that make a plan
        for baseline in BASELINES:
            plan = plans[model, baseline, "plan"]["result"]["plan"]
            distinct[json.dumps(plan["layers"])] = baseline
        for task in BENCHMARKS:
            for baseline in distinct.values():
                ours = stored.get((model, "harp+flap", task))
                theirs = stored.get((model, baseline, task))
                if ours is None or theirs is None:  # not asked
                    continue
                scores = (data.answered(ours["result"]), data.answered(theirs["result"]))
                if None in scores or not any(scores[0] + scores[1]):  # failed, or all zero
                    continue
                yield model, task, comparisons.paired_difference([scores])


@finding(
    "docs/results.md",
    "HARP+FLAP has {:.1f} on WikiText-2 and {:.1f} on the Python documentation, where the best "
    "baselines have {:.1f} and {:.1f}.",
)
def channels_taken_evenly():
    corpora = ("wikitext", "python-docs")
    numbers = [perplexity_of(GEMMA, "harp+flap-even", corpus) for corpus in corpora]
    for corpus in corpora:
        numbers.append(min(perplexity_of(GEMMA, method, corpus) for method in BASELINES))
    return numbers


@finding(
    "docs/results.md",
    "At 4,096 tokens plain HARP takes {:.2f} times the dense model's time on SmolLM2, {:.2f} times "
    "on Gemma, {:.2f} times on the coder and {:.2f} times on the 1.5B. It is shown to be faster "
    "than the model that is thinned out evenly on none of them, and to be slower on the 1.5B.",
)
def time_of_plain_harp():
    to_dense = [prefill(model, "harp") for model in ALL_MODELS]
    assert all(ratio.high < 1 for ratio in to_dense)
    for model in ALL_MODELS:
        to_thinned = prefill(model, "harp", "thinned")
        assert to_thinned.high > 1
        assert (to_thinned.low > 1) == (model == LARGER)
    return [ratio.value for ratio in to_dense]


@finding(
    "docs/results.md",
    "With it HARP is faster than both on all four models, at both lengths: at 4,096 tokens it "
    "takes {:.2f}, {:.2f}, {:.2f} and {:.2f} times the dense model's time, and {:.2f}, {:.2f}, "
    "{:.2f} and {:.2f} times that of the thinned model.",
)
def time_of_tail_only_prefill():
    values = []
    for against in ("dense", "thinned"):
        for model in ALL_MODELS:
            for length in (1024, 4096):
                assert prefill(model, "harp-tail", against, length).high < 1
            values.append(prefill(model, "harp-tail", against).value)
    return values


@finding(
    "docs/results.md",
    "On long prompts we have only the coder's {} answers to {} tasks of LongBench, too few to "
    "tell scores apart. By the likelihood of {} reference answers after prompts cut to {:,} "
    "tokens HARP+FLAP is behind every baseline: it adds {:.2f} bits per byte to the dense "
    "model's, and the baselines {:.2f} to {:.2f}. It adds most in passage retrieval, {:.2f} bits",
)
def long_prompts():
    answers, tasks, *_ = notebook_07.too_few_questions()
    asked, _, cut_to, *_ = notebook_07.behind_by_likelihood()  # asserts that it is behind all
    notebook_07.behind_most_where_something_is_looked_up()
    added = notebook_07.bits_added()["value"]
    return (
        *(answers, tasks, asked, cut_to),
        added["average", FLAPPED],
        *notebook_07.of_baselines("average"),
        added["Synthetic", FLAPPED],
    )
