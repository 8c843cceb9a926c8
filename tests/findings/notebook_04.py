"""Numbers of the findings in notebook 04."""

from findings.stored import (
    ALL_MODELS,
    CODER,
    GEMMA,
    LARGER,
    SMOLLM,
    documents,
    finding,
    perplexity_of,
)
from harp_lib import config
from harp_lib.names import BASELINES
from harp_lib.report import comparisons, data, plan_tables, plans

PAGE = "04_baselines.ipynb"
CORPORA = ("wikitext", "python-docs")


@finding(
    PAGE,
    "HARP compares {} plans on SmolLM2 135M, {} on Gemma-3 270M, {} on Qwen-Coder 0.5B and {} on "
    "Qwen-Coder 1.5B, a baseline {} to {}, {} to {}, {} to {} and {} to {}.",
)
def compared_plans():
    _, numbers = plan_tables.candidates(config.load_profile("small"))
    counts = numbers.pivot_table("candidates", "model", "method").astype(int)
    of_baselines = []
    for model in ALL_MODELS:
        fewest, most = counts.loc[model, list(BASELINES)].agg(["min", "max"])
        assert most < counts.loc[model, "harp"]
        of_baselines += [fewest, most]
    return [*(counts.loc[model, "harp"] for model in ALL_MODELS), *of_baselines]


def equally_good(model: str) -> list[int]:
    """How many other ranges are not told from the best one, a number for each baseline."""
    frame = plan_tables.ranges({"name": "small"})
    alike = frame[frame["model"] == model].groupby("method")["alike"].sum() - 1
    return sorted(int(count) for count in alike)


@finding(
    PAGE,
    "On SmolLM2 {} to {} other ranges cannot be told from the best one, depending on the "
    "baseline, on Qwen-Coder 0.5B (*the coder*) {} to {}, and on Qwen-Coder 1.5B (*the 1.5B*) {} "
    "to {}. On Gemma the best range is clear for all but FLAP ({} "
    "others). All of this is on the {} documents of WikiText-2 that α is searched on too.",
)
def uncertain_ranges():
    *others, of_flap = equally_good(GEMMA)
    assert set(others) == {0}
    tuned_on = plan_tables.ranges({"name": "small"})["documents"].unique()
    (num_documents,) = tuned_on
    smollm = equally_good(SMOLLM)
    coder = equally_good(CODER)
    larger = equally_good(LARGER)
    ends = [count for counts in (smollm, coder, larger) for count in (counts[0], counts[-1])]
    return [*ends, of_flap, num_documents]


def share_in_upper_half(model: str, method: str) -> float:
    """Share of the removed key/value groups that are in the upper half of the layers, per cent."""
    plan = data.cells("small", "baselines")[model, method, "plan"]["result"]["plan"]
    layers = [part["layer"] for part in plan["layers"] for _ in part.get("removed_groups", ())]
    upper = [layer for layer in layers if layer >= plan["num_layers"] / 2]
    return 100 * len(upper) / len(layers)


@finding(
    PAGE,
    "Every tuned baseline but one takes most of its groups from the upper half of the model: "
    "Mag-sp {:.0f} % on SmolLM2, {:.0f} % on Gemma, {:.0f} % on the coder and {:.0f} % on the "
    "1.5B, LLM-Pruner and Wanda-sp {:.0f}, {:.0f}, {:.0f} and {:.0f} %, FLAP {:.0f}, {:.0f}, "
    "{:.0f} and {:.0f} %. The exception is FLAP on the 1.5B, with half. HARP takes everything "
    "from the top fifth. The only baselines that do so too are Mag-sp, LLM-Pruner and Wanda-sp on "
    "Gemma.",
)
def upper_half():
    shares = []
    for model in ALL_MODELS:
        pair = [share_in_upper_half(model, method) for method in ("llm-pruner", "wanda-sp")]
        assert pair[0] == pair[1]
    for method in ("mag-sp", "llm-pruner", "flap"):
        for model in ALL_MODELS:
            shares.append(share_in_upper_half(model, method))
    assert share_in_upper_half(LARGER, "flap") == 50
    assert sorted(shares)[1] > 50
    stored = data.cells("small", "baselines")
    for model, method in [(model, method) for model in ALL_MODELS for method in BASELINES]:
        plan = stored[model, method, "plan"]["result"]["plan"]
        lowest = min(part["layer"] for part in plan["layers"])
        top = min(
            part["layer"] for part in stored[model, "harp", "plan"]["result"]["plan"]["layers"]
        )
        assert (lowest >= top) == (model == GEMMA and method != "flap")
    return shares


@finding(
    PAGE,
    "With the squared score FLAP removes {} of the {} groups that it removes by the printed score "
    "on SmolLM2, {} of {} on the coder, {} of {} on the 1.5B and {} of {} on Gemma. Squaring "
    "raises perplexity on the Python documentation on SmolLM2 ({} % [{}, {}]) and on the 1.5B ({} "
    "% [{}, {}]), and lowers it on the coder ({} % [{}, {}]); on WikiText-2 no difference is "
    "shown on these three.",
)
def squared_scores():
    stored = data.cells("small", "baselines")
    counts = []
    for model in (SMOLLM, CODER, LARGER, GEMMA):
        result = stored[model, "flap-squared", "plan"]["result"]
        counts += [result["same"], result["same"] + len(result["only_printed"])]
    changes = {}
    for model in (SMOLLM, LARGER, CODER):
        for corpus in CORPORA:
            changes[model, corpus] = change(model, "flap", "flap-squared", corpus)
        on_wikitext = changes[model, "wikitext"]
        assert on_wikitext.low < 0 < on_wikitext.high
    for model in (SMOLLM, LARGER):
        assert changes[model, "python-docs"].low > 0
    assert changes[CODER, "python-docs"].high < 0
    numbers = []
    for model in (SMOLLM, LARGER, CODER):
        numbers += signed(changes[model, "python-docs"])
    assert plans.is_arbitrary(stored, GEMMA, "flap")
    return counts + numbers


def change(model: str, before: str, after: str, corpus: str) -> comparisons.Interval:
    """Change of held-out perplexity from one method's plan to another's."""
    first = documents(model, "baselines", before, corpus)
    second = documents(model, "baselines", after, corpus)
    return comparisons.change(first["nll"], second["nll"], first["tokens"])


def signed(interval: comparisons.Interval) -> list[str]:
    """Value, low and high end in per cent, with the minus of the notebook."""
    return [f"{100 * end:+.0f}".replace("-", "−") for end in interval[:3]]


@finding(
    PAGE,
    "At equal parameters HARP+FLAP has a lower perplexity than the best baseline on no model and "
    "on neither text. On WikiText-2 ({} documents) the best baseline's perplexity is lower by "
    "{:.0f} % [{:.0f}, {:.0f}] on Gemma, {:.0f} % [{:.0f}, {:.0f}] on the coder and {:.0f} % "
    "[{:.0f}, {:.0f}] on the 1.5B; on SmolLM2 the difference is within noise ({} % [{}, {}]). On "
    "the Python documentation ({} documents) it is lower by {:.0f} % [{:.0f}, {:.0f}], {:.0f} % "
    "[{:.0f}, {:.0f}] and {:.0f} % [{:.0f}, {:.0f}], and again within noise on SmolLM2 ({} % [{}, "
    "{}]).",
)
def equal_parameters_against_the_best():
    numbers = []
    for corpus in CORPORA:
        changes = {}
        for model in ALL_MODELS:
            perplexities = {name: perplexity_of(model, name, corpus) for name in BASELINES}
            best = min(perplexities, key=perplexities.get)
            assert perplexities[best] < perplexity_of(model, "harp+flap", corpus)
            changes[model] = change(model, "harp+flap", best, corpus)
        numbers.append(changes[GEMMA].n)
        for model in (GEMMA, CODER, LARGER):
            value, low, high = changes[model][:3]
            assert high < 0
            numbers += [-100 * value, -100 * high, -100 * low]
        assert changes[SMOLLM].low < 0 < changes[SMOLLM].high
        numbers += signed(changes[SMOLLM])
    return numbers


@finding(
    PAGE,
    "On Gemma the best baseline on WikiText-2 is FLAP with {:.1f}, although its choice of layers "
    "is arbitrary there. It is what the README calls the best baseline on Gemma. The conclusion "
    "does not hang on it: the plan that the other three baselines share has {:.1f} on WikiText-2, "
    "and HARP+FLAP {:.1f}. On the Python documentation that shared plan is the best baseline with "
    "{:.1f}, FLAP has {:.1f} and HARP+FLAP {:.1f}.",
)
def best_on_gemma():
    stored = data.cells("small", "baselines")
    assert plans.is_arbitrary(stored, GEMMA, "flap")
    assert not plans.is_arbitrary(stored, GEMMA, "mag-sp")
    for model in (SMOLLM, CODER, LARGER):
        assert not plans.is_arbitrary(stored, model, "flap")
    assert len(plans.equal_plans(stored)[GEMMA, "mag-sp"]) == 3
    numbers = [perplexity_of(GEMMA, name) for name in ("flap", "mag-sp", "harp+flap")]
    assert numbers[0] == min(perplexity_of(GEMMA, name) for name in BASELINES)
    on_python = [
        perplexity_of(GEMMA, name, "python-docs") for name in ("mag-sp", "flap", "harp+flap")
    ]
    assert on_python[0] == best_perplexity(GEMMA, "python-docs")
    return numbers + on_python


def best_perplexity(model: str, corpus: str) -> float:
    """The lowest perplexity of a baseline on held-out text."""
    return min(perplexity_of(model, name, corpus) for name in BASELINES)


@finding(
    PAGE,
    "With as many heads gone, but fewer parameters, plain HARP has a lower perplexity than every "
    "baseline on Gemma only ({:.1f} on WikiText-2, where the best baseline has {:.1f}, and {:.1f} "
    "on the Python documentation, where it has {:.1f}). On the 1.5B even the worst baseline is "
    "ahead of plain HARP on WikiText-2 ({:.1f} against {:.1f}), and on the Python documentation "
    "all but FLAP are. No baseline takes a group of HARP's layers, {} to {}, there.",
)
def equal_heads():
    for corpus in CORPORA:
        for model in ALL_MODELS:
            intervals = [change(model, "harp", name, corpus) for name in BASELINES]
            assert all(interval.low > 0 for interval in intervals) == (model == GEMMA)
    numbers = []
    for corpus in CORPORA:
        numbers += [perplexity_of(GEMMA, "harp", corpus), best_perplexity(GEMMA, corpus)]
    ahead = {
        corpus: [name for name in BASELINES if change(LARGER, "harp", name, corpus).high < 0]
        for corpus in CORPORA
    }
    assert ahead["wikitext"] == list(BASELINES)
    assert set(BASELINES) - set(ahead["python-docs"]) == {"flap"}
    worst = max(perplexity_of(LARGER, name) for name in BASELINES)
    stored = data.cells("small", "baselines")
    of_harp = [part["layer"] for part in stored[LARGER, "harp", "plan"]["result"]["plan"]["layers"]]
    for name in BASELINES:
        plan = stored[LARGER, name, "plan"]["result"]["plan"]
        assert max(part["layer"] for part in plan["layers"]) < min(of_harp)
    return [*numbers, worst, perplexity_of(LARGER, "harp"), min(of_harp), max(of_harp)]


@finding(
    PAGE,
    "On WikiText-2 HARP takes it from the dense {:.1f} to {:.1f}, and the channels take it on to "
    "{:.1f}; on the Python documentation it goes from {:.1f} to {:.1f} and on to {:.1f}.",
)
def channels_cost_more_than_harp():
    numbers = []
    for corpus in CORPORA:
        steps = [perplexity_of(GEMMA, name, corpus) for name in ("dense", "harp", "harp+flap")]
        assert steps[2] / steps[1] > steps[1] / steps[0]
        numbers += steps
    return numbers


@finding(
    PAGE,
    "FLAP takes {:,} of {:,} channels from three layers. Taken evenly, the same number of "
    "channels gives {:.1f} on WikiText-2 and {:.1f} on the Python documentation. That is {:.0f} % "
    "[{:.0f}, {:.0f}] below the best baseline on WikiText-2 (FLAP, {} documents), but on the "
    "Python documentation no difference to the best baseline (Mag-sp = LLM-Pruner = Wanda-sp, {} "
    "documents) is shown ({} % [{}, {}]).",
)
def channels_of_gemma():
    plan = data.cells("small", "baselines")[GEMMA, "harp+flap", "plan"]["result"]["plan"]
    channels = sorted(len(layer.get("removed_channels", ())) for layer in plan["layers"])
    numbers = [sum(channels[-3:]), sum(channels)]
    numbers += [perplexity_of(GEMMA, "harp+flap-even", corpus) for corpus in CORPORA]
    changes = {}
    for corpus, best in {"wikitext": "flap", "python-docs": "mag-sp"}.items():
        assert perplexity_of(GEMMA, best, corpus) == best_perplexity(GEMMA, corpus)
        changes[corpus] = change(GEMMA, best, "harp+flap-even", corpus)
    below = changes["wikitext"]
    noise = changes["python-docs"]
    assert below.high < 0
    assert noise.low < 0 < noise.value < noise.high
    numbers += [-100 * end for end in (below.value, below.high, below.low)]
    return [*numbers, below.n, noise.n, *signed(noise)]


@finding(
    PAGE,
    "on the coder perplexity rises by {:.0f} % on WikiText-2 and by {:.0f} % on the Python "
    "documentation, and on SmolLM2 and on the 1.5B it stays the same on WikiText-2 and rises on "
    "the Python documentation, by {:.0f} and {:.0f} %. On the 1.5B it is HARP itself that is "
    "behind the baselines on WikiText-2: it has {:.1f} before the channels go and {:.1f} after.",
)
def channels_of_the_others():
    changes = {}
    for model in (CODER, SMOLLM, LARGER):
        for corpus in CORPORA:
            ours = documents(model, "baselines", "harp+flap", corpus)
            even = documents(model, "baselines", "harp+flap-even", corpus)
            change = comparisons.change(ours["nll"], even["nll"], ours["tokens"])
            changes[model, corpus] = change * 100
    assert all(changes[CODER, corpus].low > 0 for corpus in CORPORA)
    for model in (SMOLLM, LARGER):
        same = changes[model, "wikitext"]
        assert same.low < 0 < same.high
        assert changes[model, "python-docs"].low > 0
    of_coder = [changes[CODER, corpus].value for corpus in CORPORA]
    of_others = [changes[model, "python-docs"].value for model in (SMOLLM, LARGER)]
    steps = [perplexity_of(LARGER, name) for name in ("harp", "harp+flap")]
    return [*of_coder, *of_others, *steps]
