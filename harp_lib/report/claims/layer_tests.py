"""The tests of layers, perplexities and times, most of them of one claim, named in ``data/paper/claims.yaml`` too."""

import numpy as np
from scipy import stats

from harp_lib import accounting
from harp_lib.measure.text import TITLES as CORPORA
from harp_lib.methods import TITLES
from harp_lib.report import comparisons
from harp_lib.report.claims.score_tests import NOTHING, Finding, named, named_in, paper_model, weakest
from harp_lib.report.comparisons import Interval
from harp_lib.report.data import Missing, paper
from harp_lib.report.tables import efficiency, interval, paper_times, perplexities, pruning_ratios, ranges

NEARLY_ONE = 0.95  # from here on Sim and normalised entropy count as close to 1
HIGH = 0.8  # "high" are the layers above this share of the depth: the top fifth
CHANGED = 0.05  # a norm that is further from what it was than this has changed
NEARLY_ALL = 0.9  # of a deviation that has to be gone for it to be gone
CLOSE = 1e-4  # two shares of FFN channels that count as equal
EXACT = 1 - 1e-9


def exactly(value: float, n: int) -> Interval:
    """What is counted has no error."""
    return Interval(float(value), float(value), float(value), int(n))


# ---- layers: notebooks 01, 02, 03, 06


def _documents(source, store: str, model: str, method: str, quantity: str) -> dict[str, np.ndarray]:
    """A quantity (documents, layers, …) on each corpus."""
    found = {task: result.get(quantity) for task, result in source.of(store, model, method).items()}
    return {corpus: np.array(values) for corpus, values in found.items() if values and corpus in CORPORA}


@named("similarity")
def top_fifth(source, model, quantities, of) -> list[Finding]:
    """The median, or the highest, of what enters the top fifth of the layers, on each corpus."""
    found, findings = [_documents(source, "similarity", model, "trained", name) for name in quantities], []
    for corpus in found[0]:
        parts = [part[corpus] for part in found]
        layers = min(part.shape[1] for part in parts)  # what leaves the last layer is left out
        high = [part[:, int(np.ceil(HIGH * layers)) : layers].reshape(len(part), -1) for part in parts]
        value = {"median": np.median, "highest": np.max}[of](np.concatenate(high, axis=1), axis=1)
        about = f"is the {of} on {CORPORA[corpus]}"
        findings.append(Finding(comparisons.mean_interval(value), "", about, goal=NEARLY_ONE))
    return findings


@named("similarity")
def small_bound(source, model) -> list[Finding]:
    """In which share of the layers with v < 1 d(H) shrinks: the claim has a condition, and says nothing without it."""
    bound = np.array(source.result("similarity", model, "trained", "block-bound")["v"])
    if not (small := bound < 1).any():
        return [Finding(exactly(bound.min(), len(bound)), "", "is the smallest v", reason="v is below 1 in no layer")]
    distances = next(iter(_documents(source, "similarity", model, "trained", "distance").values()))[0]
    shrinks = (distances[1:] < distances[:-1])[small]
    return [Finding(exactly(shrinks.mean(), small.sum()), "share", "of the layers with v < 1", goal=EXACT)]


@named("norm_change")
def norms_changed(source, model) -> list[Finding]:
    """Which share of the heads takes the norm of its values more than 5 % away: most have to."""
    found = []
    for corpus, ratios in _documents(source, "norm_change", model, "dense", "ratios").items():
        away = np.abs(ratios - 1) > CHANGED
        share = comparisons.mean_interval(away.reshape(len(away), -1).mean(axis=1))
        found.append(Finding(share, "share", f"of the heads on {CORPORA[corpus]}", goal=0.5))
    return found


def _stream(source, model: str, plan: str) -> np.ndarray:
    """Log ratio of the stream's norm to the dense model's, above the lowest pruned layer: (documents, depths)."""
    own, dense = (source.result("norm_change", model, name, "reading")["without first"] for name in (plan, "dense"))
    alphas = source.cells("norm_change")[model, plan, "reading"]["inputs"]["alphas"]
    return np.log(np.divide(own, dense))[:, min(map(int, alphas)) + 1 :]


@named("norm_change")
def stream_changed(source, model) -> list[Finding]:
    """How much larger the residual stream is at the top with α = 1."""
    change = comparisons.mean_interval(np.expm1(_stream(source, model, "alpha-1")[:, -1]))
    return [Finding(change, "%", "at the top, α = 1", less=change.value < 0)]


@named("norm_change")
def norm_restored(source, model) -> list[Finding]:
    """Which share of the deviation from the dense norm is gone with the searched α, at the top and over the layers."""
    unscaled, searched, found = _stream(source, model, "alpha-1"), _stream(source, model, "searched"), []
    for about, of in (("at the top", np.s_[:, -1:]), ("over all pruned layers", np.s_[:, :])):
        before, after = (np.abs(logs[of]).mean(axis=1) for logs in (unscaled, searched))
        gone = comparisons.mean_interval((before - after) / before.mean())
        change = comparisons.mean_interval(unscaled[of].mean(axis=1))
        reason = "" if change.low * change.high > 0 else "α = 1 does not change the norm"
        about = f"of the deviation is gone {about}"
        found.append(Finding(gone, "share", about, goal=NEARLY_ALL, part=0.0, reason=reason))
    return found


@named("norm_change")
def norm_reason(source, model) -> list[Finding]:
    """Is the α that keeps the norm better than others that shrink, and no worse than the searched α?"""
    plans = {"alpha-1": "α = 1", "reconstructing": "branch-keeping α", "constant": "α = 0.5"}
    frame = perplexities({"name": source.profile}, "norm_change", "searched", "norm-matching")
    rows = dict(frame[frame["model"] == model].set_index("method").iterrows()) if len(frame) else {}
    if not rows.keys() >= {"searched", "norm-matching", *plans}:
        raise Missing("needs perplexities of norm_change")
    won = interval(rows["alpha-1"], "searched")
    if not won.low > 0:
        return [Finding(won, "%", "α = 1", reason="the search wins nothing over α = 1")]
    worse = {plan: interval(rows[plan], "norm-matching") for plan in plans}
    pieces = [Finding(worse[plan], "%", f"with {name} against the norm-keeping") for plan, name in plans.items()]
    norm = interval(rows["norm-matching"], "searched")
    return [weakest([*pieces, Finding(norm, "%", "with the norm-keeping α against the searched", less=True)])]


@named("alpha_search")
def alphas_alike(source, model) -> list[Finding]:
    """The rank correlation of the α searched on two corpora."""
    found = [result["alphas"] for result in source.of("alpha_search", model, "harp", "search-").values()]
    if len(found) < 2:
        raise Missing("needs α searched on two corpora")
    own = paper("alpha_search").query("model == 'LLaMA3.1-8B'").pivot_table("value", "layer", "task")
    told = (comparisons.rank_correlation(*own.to_numpy().T).value,)
    return [Finding(comparisons.rank_correlation(*found[:2]), "ρ", paper=told)]


@named("ablations")
def similar_layers(source, model) -> list[Finding]:
    """Which share of the layers that the similarity metric picks is among the top ones: most have to be."""
    picked, top = (source.result("ablations", model, m, "selection")["layers"] for m in ("similarity", "top"))
    theirs = paper("selected_layers").query("method == 'similarity'")["layer"]
    told = (float(np.mean(theirs >= 24)),)  # of 32, of which the paper prunes 8
    return [Finding(exactly(np.mean(np.isin(picked, top)), len(top)), "share", "of its layers", goal=0.5, paper=told)]


# ---- perplexities: notebooks 03 and 04


@named("alpha_search")
def perplexity_change(source, model, worse, better, splits, at_most=None, store="alpha_search") -> list[Finding]:
    """How much higher perplexity is with each of some plans than with another, on each text.

    In the plans' names ``{own}`` stands for the text's corpus, ``{other}`` for the other one.
    """
    texts = [task for task in source.of(store, model, "dense") if task.endswith(tuple(splits))]
    corpora = list(dict.fromkeys(text.rpartition("-")[0] for text in texts))
    frame = perplexities({"name": source.profile}, store, *{better.format(own=corpus) for corpus in corpora})
    frame = frame[(frame["model"] == model) & frame["split"].isin(splits)]
    word = paper("alpha_robustness").pivot_table("value", "method", "task").to_numpy()  # searched on × evaluated on
    told = {"goal": at_most, "less": True, "paper": tuple((word[::-1] / word).diagonal() - 1)} if at_most else {}
    found = []
    for (corpus, split), text in frame.groupby(["corpus", "split"], sort=False):
        rows, pieces = dict(text.set_index("method").iterrows()), []
        other = next((name for name in corpora if name != corpus), corpus)
        for plan in named_in(worse):
            pair = [name.format(own=corpus, other=other) for name in (plan, better)]
            if not rows.keys() >= {*pair}:
                raise Missing(f"needs {' and '.join(pair)} of {store}")
            about = f"with {({'alpha-1': 'α = 1'} | TITLES).get(plan, 'the other α')}, {CORPORA[corpus]}, "
            about += "held out" if split == "validation" else "searched"
            pieces.append(Finding(interval(rows[pair[0]], pair[1]), "%", about, **told))
        found.append(weakest(pieces))
    return found


@named("baselines")
def tuned_ranges(source, model) -> list[Finding]:
    """How much higher perplexity is with the paper's range of each baseline than with the best of ours."""
    theirs, tried = paper("layer_ranges").set_index("model"), ranges({"name": source.profile})
    theirs = theirs[theirs.index == paper_model(model)]
    found = tried[tried["model"] == model].merge(theirs, on=["method", "start", "end"]) if len(tried) else tried
    if found.empty:
        raise Missing("needs one of the paper's models")
    pieces = []
    for row in found.to_dict("records"):
        about = f"with {TITLES[row['method']]}"
        pieces.append(Finding(interval(row, "above"), "%", about, goal=CHANGED, less=True))
    return [weakest(pieces)]


@named()
def exact(source, model, quantity) -> list[Finding]:
    """Which share of the printed numbers follows from the configs of the paper's models, to the printed digit."""
    rows = pruning_ratios({})[1]
    if quantity == "ffn_ratios":
        agree = np.abs(rows["needed"] - rows["official"]) < CLOSE
    else:
        agree = np.concatenate([rows[m].round(1) == rows[f"{m} printed"] for m in ("flap", "harp")])
    return [Finding(exactly(agree.mean(), agree.size), "share", "of the printed numbers", goal=EXACT, part=0.0)]


# ---- times and operations: notebooks 02 and 08


@named("efficiency")
def time_saved(source, model, against, at="every", goal=0.0, only=None) -> list[Finding]:
    """Which share of the time of a prefill HARP saves, where it is least of every length, at the longest, or at one."""
    told = tuple(1 - paper_times()) if against == "dense" else ()
    told = told if at == "every" else told[-1:]
    source.of("efficiency", model, "all", "prefill-")  # raises Missing
    frame = efficiency({"name": source.profile}, "prefill")
    frame = frame.query("model == @model and variant == 'harp' and repetitions > 1").dropna(subset=f"of {against}")
    if frame.empty:
        raise Missing(f"needs repeated prefills of {against}")
    longest = frame["length"].max()
    if only and (at != longest or paper_model(model) != only):
        return [Finding(NOTHING, "%", reason=f"needs {only} and {at:,} tokens", paper=told)]
    found = []
    for row in frame[(frame["length"] == longest) | (at == "every")].to_dict("records"):
        value, low, high, n = interval(row, f"of {against}", "repetitions")
        about = f"of the time at {row['length']:,} tokens"
        found.append(Finding(Interval(1 - value, 1 - high, 1 - low, n), "%", about, goal, paper=told))
    return [weakest(found)]


@named("efficiency")
def time_saved_grows(source, model) -> list[Finding]:
    """How much less of the dense model's time HARP takes at the longest prefill than at the shortest (Welch's t)."""
    found = {int(n): result["seconds"] for n, result in source.of("efficiency", model, "all", "prefill-").items()}
    lengths = [length for length in found if len(found[length]["dense"]) > 1]
    if len(lengths) < 2:
        raise Missing("needs repeated prefills of two lengths")
    first, last = min(lengths), max(lengths)
    logs = [np.log(np.divide(found[n]["harp"], found[n]["dense"])) for n in (first, last)]
    ends = stats.ttest_ind(*logs, equal_var=False).confidence_interval()
    fall = [1 - np.exp(-end) for end in (logs[0].mean() - logs[1].mean(), *ends)]
    about = f"less time, relative to dense, at {last:,} than at {first:,} tokens"
    return [Finding(Interval(*map(float, fall), sum(map(len, logs))), "%", about)]


@named("efficiency")
def attention_share(source, model) -> list[Finding]:
    """Attention's share of the time of attention and FFN, on the side of one half that the claim puts it."""
    width, found = source.result("efficiency", model, "all", "counted")["intermediate_size"], []
    for name, result in source.of("efficiency", model, "all", "split-").items():
        runs, length = result["seconds"]["dense"], int(name)
        if len(runs) > 1 and length != width:
            share = comparisons.mean_interval([run["attention"] / (run["attention"] + run["ffn"]) for run in runs])
            about = f"in attention at {length:,} tokens, d_ff = {width:,}"
            found.append(Finding(share.within(0, 1), "share", about, 0.5, length < width))
    if not found:
        raise Missing("needs repeated splits")
    return [weakest(found)]


@named()
def overtaking(source, model) -> list[Finding]:
    """From how many times d_ff on attention takes as many operations as the FFN, all query-key pairs counted."""
    sizes = [(accounting.overtaking_length(c), c.intermediate_size) for c in accounting.paper_configs().values()]
    least = exactly(min(length / size for length, size in sizes), len(sizes))
    return [Finding(least, "", "× d_ff or later in the paper's models", goal=1, less=True)]
