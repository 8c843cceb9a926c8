"""Numbers of the findings in notebook 08."""

from transformers import AutoConfig

from findings.stored import ALL_MODELS, CODER, GEMMA, LARGER, SMOLLM, finding, judgements, prefill
from harp_lib import PruningPlan, config
from harp_lib.accounting import prefill_flops
from harp_lib.report import comparisons, data
from harp_lib.report.tables import efficiency, paper_times, told

SHORT = 1024
LONG = 4096


def includes_one(interval: comparisons.Interval) -> bool:
    """Whether no difference of two times is shown."""
    return interval.low < 1 < interval.high


def in_words(interval: comparisons.Interval) -> str:
    """A ratio with its interval."""
    return told(*interval[:3], form=".3f")


@finding(
    "08_efficiency.ipynb",
    "against that model it takes {} times as long on SmolLM2, {} on Gemma, {} on Qwen-Coder 0.5B "
    "(*the coder*) and {} on the 1.5B at {:,} tokens, and at {:,} no difference is shown either.",
)
def against_the_thinned_model():
    for model in ALL_MODELS:
        for length in (SHORT, LONG):
            assert includes_one(prefill(model, "harp", "thinned", length))
    ratios = [in_words(prefill(model, "harp", "thinned", SHORT)) for model in ALL_MODELS]
    return [*ratios, SHORT, LONG]


@finding(
    "08_efficiency.ipynb",
    "at {:,} tokens {:.3f}, {:.3f}, {:.3f} and {:.3f} of the dense model's operations are left in "
    "it (of visible query-key pairs), and {:.3f}, {:.3f}, {:.3f} and {:.3f} in HARP.",
)
def operations_left():
    prefills = efficiency({"name": "small"}, "prefill").set_index(["length", "variant", "model"])
    counted = prefills["flops causal of dense"]
    thinned = [counted[SHORT, "thinned", model] for model in ALL_MODELS]
    harp = [counted[SHORT, "harp", model] for model in ALL_MODELS]
    assert all(less < more for less, more in zip(thinned, harp, strict=True))
    return [SHORT, *thinned, *harp]


@finding(
    "08_efficiency.ipynb",
    "Against the dense model HARP saves {:.0f} % on SmolLM2 and {:.0f} % on Gemma at {:,} tokens; "
    "on the coder and on the 1.5B no saving is shown. At {:,} it saves {:.0f} % on Gemma, and on "
    "the other three no saving is shown.",
)
def plain_prefill():
    short = {model: prefill(model, "harp", "dense", SHORT) for model in ALL_MODELS}
    assert [model for model in ALL_MODELS if short[model].high < 1] == [SMOLLM, GEMMA]
    long = {model: prefill(model, "harp", "dense", LONG) for model in ALL_MODELS}
    assert [model for model in ALL_MODELS if long[model].high < 1] == [GEMMA]
    saved = [100 * (1 - short[model].value) for model in (SMOLLM, GEMMA)]
    return [*saved, SHORT, LONG, 100 * (1 - long[GEMMA].value)]


@finding(
    "08_efficiency.ipynb",
    "faster than the thinned model at {:,} tokens on Gemma, {}, on the coder, {}, and on the "
    "1.5B, {}, but this is not shown on SmolLM2, {}. At {:,} tokens, with {} repetitions, it is "
    "faster on the 1.5B, {}; on the other three the intervals were too wide to tell.",
)
def tail_only_prefill():
    short = {model: prefill(model, "harp-tail", "thinned", SHORT) for model in ALL_MODELS}
    assert [model for model in ALL_MODELS if short[model].high < 1] == [GEMMA, CODER, LARGER]
    long = {model: prefill(model, "harp-tail", "thinned", LONG) for model in ALL_MODELS}
    assert [model for model in ALL_MODELS if not includes_one(long[model])] == [LARGER]
    assert long[LARGER].high < 1
    (repetitions,) = {interval.n for interval in long.values()}
    numbers = [in_words(short[model]) for model in (GEMMA, CODER, LARGER, SMOLLM)]
    return [SHORT, *numbers, LONG, repetitions, in_words(long[LARGER])]


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
    "attention takes {} % on Gemma at {:,} tokens: less than half, as the paper says of fewer "
    "tokens than d_ff, which is 2,048 there. On SmolLM2, with a d_ff of 1,536, attention takes {} "
    "% at {:,} tokens, where the paper expects more than half.",
)
def share_of_attention():
    judged = judgements("08")
    judged = judged[judged["id"] == "overtaking-timed"].set_index("model")
    shares = {}
    for model in (GEMMA, SMOLLM):
        ends = (100 * judged.loc[model, end] for end in ("value", "low", "high"))
        shares[model] = told(*ends, form=".0f")
    assert "d_ff = 2,048" in judged.loc[GEMMA, "about"]
    assert "d_ff = 1,536" in judged.loc[SMOLLM, "about"]
    for model in (CODER, LARGER):
        assert judged.loc[model, "n"] == 0  # nothing longer than its d_ff was timed
    return shares[GEMMA], SHORT, shares[SMOLLM], LONG


@finding(
    "08_efficiency.ipynb",
    "On the coder and on the 1.5B {:,} tokens are too few to ask.",
)
def too_few_tokens():
    return [LONG]


@finding(
    "08_efficiency.ipynb",
    "to {:.2f} of the dense one on SmolLM2, {:.2f} on Gemma, {:.2f} on the coder and {:.2f} on "
    "the 1.5B at {:,} tokens, in HARP and in the thinned model alike. On Gemma the share falls "
    "with the length, from {:.2f} at {:,} tokens, because most of its layers cache a window of {} "
    "tokens only and one of the few that cache the whole text is pruned. A new token takes less "
    "time with HARP on SmolLM2, {} after {:,} tokens, and on the 1.5B, {}; on Gemma and on the "
    "coder no saving is shown. Against the thinned model no difference is shown on any of the "
    "four.",
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
    harp = decode[decode["variant"] == "harp"]
    assert set(harp[harp["of dense high"] < 1]["model"]) == {SMOLLM, LARGER}
    assert ((harp["of thinned low"] < 1) & (harp["of thinned high"] > 1)).all()
    last = harp[harp["length"] == LONG].set_index("model")
    columns = ["of dense", "of dense low", "of dense high"]
    ends = {model: told(*last.loc[model, columns], form=".3f") for model in (SMOLLM, LARGER)}
    return [
        *kept,
        LONG,
        cache[SHORT, "harp", GEMMA],
        SHORT,
        window + 1,
        ends[SMOLLM],
        LONG,
        ends[LARGER],
    ]


@finding(
    "08_efficiency.ipynb",
    "On Gemma after {:,} tokens that model, unlike HARP, is shown to be faster than the dense one, "
    "{}.",
)
def new_tokens_of_the_thinned_model():
    decode = efficiency({"name": "small"}, "decode")
    rows = decode[(decode["model"] == GEMMA) & (decode["length"] == LONG)].set_index("variant")
    assert rows.loc["thinned", "of dense high"] < 1 < rows.loc["harp", "of dense high"]
    ends = [rows.loc["thinned", f"of dense{end}"] for end in ("", " low", " high")]
    return LONG, told(*ends, form=".3f")


@finding(
    "08_efficiency.ipynb",
    "{} repetitions are too few to show that it is faster: {} times the dense speed for a prompt "
    "of {:,} tokens and {} times for new tokens.",
)
def speed_in_llama_cpp():
    rows = data.tidy("small", "efficiency", "prompt", "generation")
    assert set(rows["model"]) == {SMOLLM}
    (length,) = rows["length"].unique()
    ratios = {}
    for quantity, part in rows.groupby("quantity"):
        speeds = part.pivot_table("value", "repetition", "variant")
        ratios[quantity] = comparisons.time_ratio(speeds["dense"], speeds["harp"])
        assert includes_one(ratios[quantity])
    prompt = ratios["prompt"]
    return prompt.n, in_words(prompt), length, in_words(ratios["generation"])
