"""Numbers of the findings in notebook 08."""

from collections.abc import Iterable

from transformers import AutoConfig

from findings.stored import ALL_MODELS, CODER, GEMMA, LARGER, SMOLLM, finding, prefill, verdict_on
from harp_lib import PruningPlan, config
from harp_lib.accounting import prefill_flops
from harp_lib.report import comparisons, data
from harp_lib.report.claims.findings import Outcome
from harp_lib.report.tables import efficiency, paper_times, told

SHORT = 1024
LONG = 4096
OTHERS = (GEMMA, CODER, LARGER)  # than SmolLM2


def includes_one(interval: comparisons.Interval) -> bool:
    """Whether no difference of two times is shown."""
    return interval.low < 1 < interval.high


def in_words(interval: comparisons.Interval) -> str:
    """A ratio with its interval."""
    return told(*interval[:3], form=".3f")


def of_all_models(variant: str, against: str) -> list[comparisons.Interval]:
    """The ratios of all models at the short length, then at the long one."""
    return [prefill(model, variant, against, n) for n in (SHORT, LONG) for model in ALL_MODELS]


@finding(
    "08_efficiency.ipynb",
    "At {:,} tokens it takes {:.2f} to {:.2f} times the dense model's time on SmolLM2, Gemma and "
    "the 1.5B, and at {:,} tokens {:.2f} to {:.2f} times on all four. Only on Qwen-Coder 0.5B "
    "(*the coder*) at 1,024 tokens is no saving shown, {}.",
)
def plain_prefill():
    short = {model: prefill(model, "harp", "dense", SHORT) for model in ALL_MODELS}
    long = [prefill(model, "harp", "dense", LONG) for model in ALL_MODELS]
    not_shown = short.pop(CODER)
    assert includes_one(not_shown)
    assert all(ratio.high < 1 for ratio in (*short.values(), *long))
    return [SHORT, *ends(short.values()), LONG, *ends(long), in_words(not_shown)]


def ends(ratios: Iterable[comparisons.Interval]) -> tuple[float, float]:
    """The smallest and the largest of some ratios."""
    values = [ratio.value for ratio in ratios]
    return min(values), max(values)


@finding(
    "08_efficiency.ipynb",
    "Relative to the thinned model it takes {:.2f} to {:.2f} times as long. Where a difference is "
    "shown, HARP is slower: {} on Gemma at {:,} tokens and {} on the 1.5B at {:,}.",
)
def against_the_thinned_model():
    ratios = of_all_models("harp", "thinned")
    on_gemma = prefill(GEMMA, "harp", "thinned", SHORT)
    on_larger = prefill(LARGER, "harp", "thinned", LONG)
    assert [ratio for ratio in ratios if not includes_one(ratio)] == [on_gemma, on_larger]
    assert min(on_gemma.low, on_larger.low) > 1
    return [*ends(ratios), in_words(on_gemma), SHORT, in_words(on_larger), LONG]


@finding(
    "08_efficiency.ipynb",
    "it is left with {:.3f} (SmolLM2), {:.3f} (Gemma), {:.3f} (the coder) and {:.3f} (the 1.5B) "
    "of the dense model's operations at {:,} tokens, and HARP with {:.3f}, {:.3f}, {:.3f} and "
    "{:.3f}. That accounts for the difference on Gemma. On the 1.5B the counts at {:,} tokens "
    "differ by {:.1f} % alone, so there it is not all of the reason.",
)
def operations_left():
    prefills = efficiency({"name": "small"}, "prefill").set_index(["length", "variant", "model"])
    counted = prefills["flops causal of dense"]
    thinned = [counted[SHORT, "thinned", model] for model in ALL_MODELS]
    harp = [counted[SHORT, "harp", model] for model in ALL_MODELS]
    assert all(less < more for less, more in zip(thinned, harp, strict=True))
    by_count = {
        (model, length): counted[length, "harp", model] / counted[length, "thinned", model]
        for model, length in ((GEMMA, SHORT), (LARGER, LONG))
    }
    timed = {case: prefill(case[0], "harp", "thinned", case[1]) for case in by_count}
    assert timed[GEMMA, SHORT].low < by_count[GEMMA, SHORT] < timed[GEMMA, SHORT].high
    assert by_count[LARGER, LONG] < timed[LARGER, LONG].low
    return [*thinned, SHORT, *harp, LONG, 100 * (by_count[LARGER, LONG] - 1)]


@finding(
    "08_efficiency.ipynb",
    "it takes {:.2f} to {:.2f} times the thinned model's time at {:,} tokens, and {:.2f} to {:.2f} "
    "times at {:,}.",
)
def tail_only_prefill():
    ratios = of_all_models("harp-tail", "thinned")
    assert all(ratio.high < 1 for ratio in ratios)
    return [*ends(ratios[:4]), SHORT, *ends(ratios[4:]), LONG]


@finding(
    "08_efficiency.ipynb",
    "The paper timed LLaMA3.1-8B with 8 of 32 layers pruned on one H100, 10 times at each length. "
    "It prints a saving of {:.1f} % at 1,024 and of {:.1f} % at 65,536 tokens",
)
def times_of_the_paper():
    times = paper_times()
    return 100 * (1 - times[1024]), 100 * (1 - times[65536])


def saved_by_count(tokens: int, visible_only: bool) -> float:
    """Per cent of the operations that HARP saves in the model that the paper timed."""
    llama = AutoConfig.from_pretrained(config.DATA / "configs" / "Llama-3.1-8B.json")
    plan = PruningPlan.value_only(num_layers=32, alphas=[1.0] * 8)
    left = prefill_flops(llama, plan, tokens, visible_only)
    return 100 * (1 - left / prefill_flops(llama, None, tokens, visible_only))


@finding(
    "08_efficiency.ipynb",
    "8 of 32 layers without attention save {:.1f} % of the operations at 65,536 tokens if only "
    "visible query-key pairs are computed, and {:.1f} % if all are; the paper prints {:.1f} % of "
    "the time. At 1,024 tokens the count is {:.1f} to {:.1f} % and the paper prints {:.1f} %.",
)
def count_of_the_papers_model():
    long = [saved_by_count(65536, True), saved_by_count(65536, False)]
    short = [saved_by_count(1024, True), saved_by_count(1024, False)]
    printed_short, printed_long = times_of_the_paper()
    assert long[0] < printed_long < long[1] < 25
    return *long, printed_long, *short, printed_short


@finding(
    "08_efficiency.ipynb",
    "Of the time of both, attention takes {} % on SmolLM2 and {} % on Gemma at {:,} tokens, which "
    "are fewer than d_ff there (1,536 and 2,048), and {} % and {} % at {:,}. On the coder and on "
    "the 1.5B {:,} tokens are still fewer than d_ff, and attention takes {} % and {} % there.",
)
def share_of_attention():
    outcomes = verdict_on("overtaking-timed")["outcome"]
    assert outcomes[SMOLLM] == outcomes[GEMMA] == Outcome.REPRODUCED
    assert outcomes[CODER] == outcomes[LARGER] == Outcome.INCONCLUSIVE
    short = [attention_in_words(model, SHORT) for model in (SMOLLM, GEMMA)]
    long = [attention_in_words(model, LONG) for model in (SMOLLM, GEMMA)]
    larger = [attention_in_words(model, LONG) for model in (CODER, LARGER)]
    return *short, SHORT, *long, LONG, LONG, *larger


def attention_in_words(model: str, length: int) -> str:
    """Attention's share of the dense model's time of attention and FFN, in per cent."""
    rows = data.tidy("small", "efficiency", "seconds")
    rows = rows[(rows["model"] == model) & (rows["kind"] == "split") & (rows["length"] == length)]
    seconds = rows[rows["variant"] == "dense"].pivot_table("value", "repetition", "part")
    both = seconds["attention"] + seconds["ffn"]
    share = comparisons.mean_interval(seconds["attention"] / both)
    return told(*(100 * end for end in share[:3]), form=".0f")


@finding(
    "08_efficiency.ipynb",
    "to {:.2f} of the dense one on SmolLM2, {:.2f} on Gemma, {:.2f} on the coder and {:.2f} on "
    "the 1.5B at {:,} tokens, in HARP and in the thinned model alike. On Gemma the share falls "
    "with the length, from {:.2f} at {:,} tokens, because most of its layers cache a window of {} "
    "tokens only and one of the few that cache the whole text is pruned. After {:,} tokens a new "
    "one takes HARP {} times the dense model's time on SmolLM2, {} on Gemma, {} on the coder and "
    "{} on the 1.5B. Relative to the thinned model it is faster on SmolLM2 alone, {}; on the other "
    "three no difference is shown.",
)
def cache_and_new_tokens():
    prefills = efficiency({"name": "small"}, "prefill").set_index(["length", "variant", "model"])
    cache = prefills["cache_bytes of dense"]
    kept = [cache[LONG, "harp", model] for model in ALL_MODELS]
    assert kept == [cache[LONG, "thinned", model] for model in ALL_MODELS]
    # A window of W tokens caches W - 1: of 18 layers, 3 of them with the whole text, 4 go.
    window = 511
    for length in (SHORT, LONG):
        share = (3 * window + length) / (15 * window + 3 * length)
        assert abs(1 - share - cache[length, "harp", GEMMA]) < 1e-6
    decode = efficiency({"name": "small"}, "decode")
    after = decode[(decode["variant"] == "harp") & (decode["length"] == LONG)].set_index("model")
    to_dense, to_thinned = (
        {model: after.loc[model, [of, f"{of} low", f"{of} high"]] for model in ALL_MODELS}
        for of in ("of dense", "of thinned")
    )
    assert [model for model in ALL_MODELS if to_thinned[model].iloc[2] < 1] == [SMOLLM]
    assert all(to_thinned[model].iloc[2] > 1 > to_thinned[model].iloc[1] for model in OTHERS)
    return [
        *kept,
        LONG,
        cache[SHORT, "harp", GEMMA],
        SHORT,
        window + 1,
        LONG,
        *(told(*to_dense[model], form=".3f") for model in ALL_MODELS),
        told(*to_thinned[SMOLLM], form=".3f"),
    ]


@finding(
    "08_efficiency.ipynb",
    "llama.cpp runs the pruned SmolLM2 faster than the dense one: at {} times its speed for a "
    "prompt of {:,} tokens, and at {} times for new tokens ({} repetitions).",
)
def speed_in_llama_cpp():
    rows = data.tidy("small", "efficiency", "prompt", "generation")
    assert set(rows["model"]) == {SMOLLM}
    (length,) = rows["length"].unique()
    ratios = {}
    for quantity, part in rows.groupby("quantity"):
        speeds = part.pivot_table("value", "repetition", "variant")
        ratios[quantity] = comparisons.time_ratio(speeds["dense"], speeds["harp"])
        assert ratios[quantity].low > 1
    prompt = ratios["prompt"]
    return in_words(prompt), length, in_words(ratios["generation"]), prompt.n
