"""The tests of layers, ranges and times, most of them of one claim, named in ``data/paper/claims.yaml`` too."""

import numpy as np
from scipy import stats

from harp_lib import accounting
from harp_lib.measure.text import TITLES as CORPORA
from harp_lib.methods import TITLES
from harp_lib.report import comparisons
from harp_lib.report.claims.score_tests import NOTHING, Finding, named, paper_model, weakest
from harp_lib.report.comparisons import Interval
from harp_lib.report.data import Missing, paper
from harp_lib.report.tables import pruning_ratios

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

    def worse(first: str, second: str, about: str, **told) -> Finding:
        low, high = (source.result("norm_change", model, plan, "reading") for plan in (first, second))
        return Finding(comparisons.change(low["nll"], high["nll"], low["tokens"]), "%", about, **told)

    won = worse("searched", "alpha-1", "α = 1", reason="the search wins nothing over α = 1")
    if not won.interval.low > 0:
        return [won]
    others = {"alpha-1": "α = 1", "reconstructing": "branch-keeping α", "constant": "α = 0.5"}
    pieces = [worse("norm-matching", plan, f"with {others[plan]} against the norm-keeping") for plan in others]
    norm = worse("searched", "norm-matching", "with the norm-keeping α against the searched", less=True)
    return [weakest([*pieces, norm])]


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


@named("ablations")
def layer_gains(source, model) -> list[Finding]:
    """The least that one layer's searched α lowers perplexity: by itself, after those above, or after all others."""
    found, pieces = source.of("ablations", model, "gain"), []
    alphas = source.cells("ablations")[model, "gain", next(iter(found))]["inputs"]["alphas"]
    for k, layer in enumerate(sorted(map(int, alphas), reverse=True)):
        ways = {"by itself": ("top-0", f"only-{layer}"), "after those above": (f"top-{k}", f"top-{k + 1}")}
        ways["after all others"] = (f"without-{layer}", f"top-{len(alphas)}")
        for about, plans in ways.items() if alphas[str(layer)] != 1 else ():  # at 1 there is nothing to gain
            before, after = ([result["nll"][plan] for result in found.values()] for plan in plans)
            gain = comparisons.change(after, before, [result["tokens"] for result in found.values()])
            pieces.append(Finding(gain, "%", f"layer {layer} {about}"))
    if not pieces:
        raise Missing("every searched α is 1")
    return [weakest(pieces)]


# ---- baselines: notebook 04


@named("baselines")
def tuned_ranges(source, model) -> list[Finding]:
    """How much higher perplexity is with the paper's range of each baseline than with the best of ours."""
    rows, found = paper("layer_ranges"), []
    for row in rows[rows["model"] == paper_model(model)].itertuples():
        tried = source.of("baselines", model, row.method, "range-")
        best = min(tried.values(), key=lambda read: sum(read["nll"]) / sum(read["tokens"]))
        if (theirs := tried.get(f"{row.start:02}-{row.end:02}")) is not None:
            change = comparisons.change(best["nll"], theirs["nll"], best["tokens"])
            found.append(Finding(change, "%", f"with {TITLES[row.method]}", goal=CHANGED, less=True))
    if not found:
        raise Missing("needs one of the paper's models")
    return [weakest(found)]


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


def _timed(source, model: str, kind: str) -> dict[int, dict]:
    """The lengths that were timed more than once, from the shortest on."""
    found = {int(n): result["seconds"] for n, result in source.of("efficiency", model, "all", f"{kind}-").items()}
    return {length: found[length] for length in sorted(found) if len(found[length]["dense"]) > 1}


@named("efficiency")
def time_saved(source, model, against, at, goal=0.0, only=None) -> list[Finding]:
    """Which share of the time of a prefill HARP saves: at every length, at the longest, at one, or how it grows."""
    timed = {n: runs for n, runs in _timed(source, model, "prefill").items() if against in runs}
    if not timed:
        raise Missing(f"needs repeated prefills of {against}")
    first, last = min(timed), max(timed)
    if at == "growth":
        if first == last:
            raise Missing("needs prefills of two lengths")
        logs = [np.log(np.divide(timed[n]["harp"], timed[n][against])) for n in (first, last)]
        ends = stats.ttest_ind(*logs, equal_var=False).confidence_interval()
        fall = [1 - np.exp(-end) for end in (logs[0].mean() - logs[1].mean(), *ends)]
        about = f"less time, relative to {against}, at {last:,} than at {first:,} tokens"
        return [Finding(Interval(*map(float, fall), sum(map(len, logs))), "%", about)]
    seconds = paper("efficiency").query("quantity == 'seconds'").pivot_table("value", "length", "method")
    told, found = tuple(1 - seconds["harp"] / seconds["dense"]) if against == "dense" else (), []
    if only and (at not in timed or paper_model(model) != only):
        return [Finding(NOTHING, "%", reason=f"needs {only} and {at:,} tokens", paper=told[-1:])]
    for n in timed if at == "every" else [at if only else last]:
        logs = [np.log(timed[n][plan]) for plan in (against, "harp")]
        saved, about = -comparisons.change(*logs, np.ones(len(logs[0]))), f"of the time at {n:,} tokens"
        found.append(Finding(saved, "%", about, goal, paper=told if at == "every" else told[-1:]))
    return [weakest(found)]


@named("efficiency")
def attention_share(source, model) -> list[Finding]:
    """Attention's share of the time of attention and FFN, on the side of one half that the claim puts it."""
    width, found = source.result("efficiency", model, "all", "counted")["intermediate_size"], []
    for length, runs in _timed(source, model, "split").items():
        shares = [run["attention"] / (run["attention"] + run["ffn"]) for run in runs["dense"]]
        about = f"in attention at {length:,} tokens, d_ff = {width:,}"
        share = comparisons.mean_interval(shares).within(0, 1)
        found += [Finding(share, "share", about, 0.5, length < width)] if length != width else []
    if not found:
        raise Missing("needs repeated splits")
    return [weakest(found)]


@named()
def overtaking(source, model) -> list[Finding]:
    """From how many times d_ff on attention takes as many operations as the FFN, all query-key pairs counted."""
    sizes = [(accounting.overtaking_length(c), c.intermediate_size) for c in accounting.paper_configs().values()]
    least = exactly(min(length / size for length, size in sizes), len(sizes))
    return [Finding(least, "", "× d_ff or later in the paper's models", goal=1, less=True)]
