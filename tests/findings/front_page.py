"""Numbers of the findings in README.md."""

import numpy as np
import pandas as pd

from findings import notebook_05, notebook_09
from findings.stored import (
    ALL_MODELS,
    CODER,
    GEMMA,
    LARGER,
    SMOLLM,
    documents,
    finding,
    perplexity_of,
    prefill,
    verdict_on,
)
from harp_lib import config
from harp_lib.names import BASELINES
from harp_lib.report import comparisons, data
from harp_lib.report.claims.findings import Outcome
from harp_lib.report.perplexity_changes import HARP_TOP


def without_search(method: str, corpus: str) -> list[comparisons.Interval]:
    """Change of held-out perplexity in per cent by a rule for α, on each model."""
    changes = []
    for model in ALL_MODELS:
        searched = documents(model, "alpha_search", f"searched-on-{corpus}", corpus)
        other = documents(model, "alpha_search", method, corpus)
        change = comparisons.change(searched["nll"], other["nll"], searched["tokens"])
        changes.append(change * 100)
    return changes


def cost_in_perplexity():
    numbers = []
    for model in ALL_MODELS:
        dense = documents(model, "alpha_search", "dense", "wikitext")
        harp = documents(model, "alpha_search", "searched-on-wikitext", "wikitext")
        change = comparisons.change(dense["nll"], harp["nll"], dense["tokens"])
        assert change.low > 0
        numbers.append(100 * change.value)
    return numbers


@finding(
    "README.md",
    "With a fifth of the layers value-only, held-out perplexity on WikiText-2 is {:.0f} % above "
    "the dense model's on SmolLM2, {:.0f} % on Gemma, {:.0f} % on the coder and {:.0f} % on the "
    "1.5B. With α = 1 it is another {:.0f} %, {:.0f} %, {:.0f} % and {:.0f} % higher",
)
def rescaling_matters():
    by_alpha_1 = without_search("alpha-1", "wikitext")
    assert all(change.low > 0 for change in by_alpha_1)
    return cost_in_perplexity() + [change.value for change in by_alpha_1]


@finding(
    "README.md",
    "For a fifth of the layers it comes close: on three texts its perplexity is {:.0f} to {:.0f} % "
    "higher than the searched α's on SmolLM2, {:.0f} to {:.0f} % higher on Gemma, and {:.0f} to "
    "{:.0f} % lower on the coder; {:.0f} to {:.0f} % higher on the 1.5B",
)
def alpha_without_a_search():
    ends = np.array(notebook_09.spans("alpha-fit", "top", HARP_TOP, notebook_09.fifth))
    smollm, gemma, coder = (100 * (ends - 1)).reshape(3, 2)
    assert gemma[0].round() == 0  # below zero, and printed as 0
    larger = notebook_09.part(notebook_09.usual(HARP_TOP), "alpha-fit", "top", LARGER, layers=6)
    assert len(larger) == 3
    return [
        *smollm,
        abs(gemma[0]),
        gemma[1],
        -coder[1],
        -coder[0],
        *(100 * (np.array(notebook_09.span(larger)) - 1)),
    ]


@finding(
    "README.md",
    "On real text no trained head of our models is close to uniform, and on Gemma, on the coder "
    "and on the 1.5B the searched α takes the norm further from the dense model's than α = 1 does; "
    "on SmolLM2 it takes it closer",
)
def the_reason():
    restored = verdict_on("norm-restored")
    assert sorted(restored.index[restored["high"] < 0]) == sorted([GEMMA, CODER, LARGER])
    judged = pd.read_csv(config.CHECKOUT / "figures" / "small" / "verdicts" / "02.csv")
    marks = judged.query("claim == 'norm-restored'").set_index("model")["mark"]
    assert marks["SmolLM2"] == "✓"
    heads = data.tidy("small", "similarity", "entropy")
    heads = heads.query("method == 'trained' and task != 'repeated-tokens'")
    assert (heads.groupby(["model", "layer", "head"])["value"].mean() < 0.95).all()
    return []


@finding(
    "README.md",
    "HARP+FLAP's perplexity is higher than the best baseline's on Gemma, on the coder and on the "
    "1.5B; on SmolLM2 the difference is within noise. On Gemma FLAP's choice of channels is the "
    "main cause: with channels from all layers evenly its perplexity on WikiText-2 is lower than "
    "the best baseline's",
)
def best_baselines():
    judged = verdict_on("perplexity-parameters")["outcome"]
    assert judged[GEMMA] == judged[CODER] == judged[LARGER] == Outcome.NOT
    assert judged[SMOLLM] == Outcome.INCONCLUSIVE
    even = perplexity_of(GEMMA, "harp+flap-even")
    assert even < min(perplexity_of(GEMMA, method) for method in BASELINES)
    return []


@finding(
    "README.md",
    "On the average of six multiple-choice tasks it leads the best baseline on the 1.5B, by "
    "{:.1f} points [{:.1f}, {:.1f}]; without MMLU, where it beats the dense model, and on the "
    "other models, no lead is shown. Where answers are written, it is behind on Gemma, and on "
    "SmolLM2 and the 1.5B it finds the reference answers less likely than the best baseline does;",
)
def multiple_choice_at_equal_parameters():
    notebook_05.discriminative_averages()  # asserts which leads are shown
    notebook_05.leads_on_bbh_and_mmlu()  # asserts that it is above the dense model
    judged = verdict_on("generation-parameters")
    assert judged["outcome"][GEMMA] == Outcome.NOT
    assert (judged["by likelihood"][[SMOLLM, LARGER]] == Outcome.NOT).all()
    return notebook_05.closest(notebook_05.CHOOSING, LARGER, "FLAP")[:3]


@finding(
    "README.md",
    "Of {} problems of GSM8K the 1.5B solves {:.0f} %, and pruned by any method none",
)
def gsm8k_of_the_larger_model():
    solved, problems = notebook_05.solved_of_gsm8k()
    return problems, solved


@finding(
    "README.md",
    "on the 1.5B it is slower. With *tail-only prefill*, our addition, only the last token of a "
    "prompt enters the top layers. Then on all four reading takes less time than in the thinned "
    "model: {:.0f} to {:.0f} % less at 1,024 tokens, and {:.0f} to {:.0f} % at 4,096",
)
def time_to_read():
    for model in ALL_MODELS:
        assert prefill(model, "harp", "dense", 4096).high < 1
        assert prefill(model, "harp", "thinned", 1024).high > 1
        assert prefill(model, "harp", "thinned", 4096).high > 1
    assert prefill(LARGER, "harp", "thinned", 4096).low > 1
    saved = []
    for length in (1024, 4096):
        ratios = [prefill(model, "harp-tail", "thinned", length) for model in ALL_MODELS]
        assert all(ratio.high < 1 for ratio in ratios)
        values = [100 * (1 - ratio.value) for ratio in ratios]
        saved += [min(values), max(values)]
    return saved


@finding(
    "README.md",
    "With a third of the layers value-only, perplexity on news that nothing was fitted to is then "
    "{:.2f} times HARP's on SmolLM2, {:.2f} times on Gemma, {:.2f} times on the coder and {:.2f} "
    "times on the 1.5B. Of pass keys {:.0f} %, {:.0f} % and {:.0f} % are found on the first "
    "three, where HARP finds {:.0f} %, {:.0f} % and {:.0f} %; on the 1.5B both find none",
)
def other_layers_and_weights():
    notebook_09.keys_of_the_larger_coder()  # asserts that both find none
    changes = notebook_09.against_harp()
    return [changes[place] for place in (0, 3, 6, 9)] + notebook_09.keys_found()
