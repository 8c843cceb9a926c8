"""Numbers of the findings in README.md."""

from findings.notebook_01 import uniform_heads
from findings.stored import CODER, GEMMA, MODELS, SMOLLM, finding, perplexity_of, prefill
from harp_lib import config
from harp_lib.names import BASELINES
from harp_lib.report import claims, comparisons, data, figures_harp
from harp_lib.report.claims.findings import Outcome


def against_the_searched_alpha(model: str, rule: str) -> comparisons.Interval:
    """Change of held-out perplexity if alpha is chosen by another rule than by the search."""
    rows = data.documents("small", "norm_change").query("model == @model")
    nll = rows.pivot_table("nll", "document", "method")
    tokens = rows.query("method == 'searched'").set_index("document")["tokens"]
    return comparisons.change(nll["searched"], nll[rule], tokens)


@finding(
    "README.md",
    "With α = 1 held-out perplexity is {:.0f} % higher than with the searched α on SmolLM2, {:.0f} "
    "% on Gemma and {:.0f} % on the coder. An α fitted by least squares needs no search. "
    "Against the searched α it changes perplexity by {} % [{}, {}] on Gemma and by {} % [{}, {}] "
    "on the coder; on SmolLM2, {} % [{}, {}], the interval is too wide to tell (95 % intervals, {} "
    "documents of WikiText-2",
)
def a_search_is_not_always_needed():
    by_alpha_1 = []
    fitted = {}
    for model in MODELS:
        value, low, _ = against_the_searched_alpha(model, "alpha-1")[:3]
        assert low > 0
        by_alpha_1.append(100 * value)
        ends = against_the_searched_alpha(model, "reconstructing")[:3]  # value, low, high
        fitted[model] = [f"{100 * end:+.1f}".replace("-", "−") for end in ends]
        low, high = ends[1:]
        assert low < 0 < high
        is_narrow = high - low < 0.05
        assert is_narrow == (model != SMOLLM)
    read = data.documents("small", "norm_change")
    assert read["corpus"].unique().tolist() == ["wikitext"]
    documents = read["document"].nunique()
    return [*by_alpha_1, *fitted[GEMMA], *fitted[CODER], *fitted[SMOLLM], documents]


@finding(
    "README.md",
    "No trained head of our models is close to uniform, and on Gemma and on the coder the searched "
    "α takes the norm further from the dense model's",
)
def the_reason():
    judged = claims.judge(config.load_profile("small"))
    restored = judged[judged["id"] == "norm-restored"].set_index("model")["high"]
    assert sorted(restored.index[restored < 0]) == sorted([GEMMA, CODER])
    uniform_heads()  # asserts that none is, in any layer
    return []


@finding(
    "README.md",
    "It has a higher perplexity than the best baseline on Gemma and on the coder; on SmolLM2 the "
    "difference is within noise. On Gemma the cause is FLAP's choice of FFN channels: with "
    "channels taken evenly from all layers HARP+FLAP has a lower perplexity on WikiText-2 than "
    "the best baseline",
)
def best_baselines():
    judged = claims.judge(config.load_profile("small"), "04")
    judged = judged[judged["id"] == "perplexity-parameters"].set_index("model")["outcome"]
    assert judged[GEMMA] == judged[CODER] == Outcome.NOT
    assert judged[SMOLLM] == Outcome.INCONCLUSIVE
    even = perplexity_of(GEMMA, "harp+flap-even")
    assert even < min(perplexity_of(GEMMA, method) for method in BASELINES)
    return []


@finding(
    "README.md",
    "reading a prompt of 1,024 tokens takes less time than in the thinned model on Gemma and on "
    "the coder, and no difference is shown on SmolLM2. At 4,096 tokens the intervals are too wide "
    "to tell",
)
def tail_only_prefill_against_thinned():
    for model in MODELS:
        assert prefill(model, "harp", "thinned", 1024).high > 1
        longer = prefill(model, "harp-tail", "thinned")
        assert longer.low < 1 < longer.high
    on_smollm = prefill(SMOLLM, "harp-tail", "thinned", 1024)
    assert on_smollm.low < 1 < on_smollm.high
    assert prefill(GEMMA, "harp-tail", "thinned", 1024).high < 1
    assert prefill(CODER, "harp-tail", "thinned", 1024).high < 1
    return []


@finding(
    "README.md",
    "Fitted on WikiText-2, the refitted model has a lower perplexity than HARP on other pages of "
    "it on all three models. On the Python documentation, not fitted to, this is shown for "
    "SmolLM2 alone",
)
def refit_against_harp():
    frame = figures_harp.changes({"name": "small"}, "harp").query("kind == 'harp+refit'")
    fewest = frame["layers"] == frame.groupby("model")["layers"].transform("min")
    high = frame[fewest].pivot_table("high", "model", "corpus")
    assert (high["wikitext"] < 1).all()
    assert high.index[high["python-docs"] < 1].tolist() == [SMOLLM]
    low = frame[fewest].pivot_table("low", "model", "corpus")["python-docs"]
    assert (low < 1).all()
    return []
