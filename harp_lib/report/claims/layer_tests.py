"""The tests of layers, perplexities and times, most of them of one claim."""

from functools import partial

import numpy as np
from scipy import stats

from harp_lib.names import CORPUS_TITLES
from harp_lib.report.claims.findings import NOTHING, Finding, weakest
from harp_lib.report.claims.registry import claim_test
from harp_lib.report.claims.score_tests import PLANS, named_in, paper_model
from harp_lib.report.comparisons import (
    Interval,
    change,
    mean_interval,
    rank_correlation,
    time_ratio,
)
from harp_lib.report.data import Missing, paper
from harp_lib.report.plan_tables import ranges, ratios_beside_printed
from harp_lib.report.tables import interval, paper_times

CHANGED = 0.05  # a norm that is further from what it was than this has changed
OF = {  # what is taken of a document, its unit, and the words for it
    "median": (np.median, "", "is the median"),
    "highest": (np.max, "", "is the highest"),
    "changed": (
        lambda norms, axis: np.mean(np.abs(norms - 1) > CHANGED, axis),
        "share",
        "of the heads",
    ),
}


def exactly(value: float, n: int) -> Interval:
    """What is counted has no error."""
    return Interval(float(value), float(value), float(value), int(n))


@claim_test
def of_documents(source, method, quantities, of, goal, depth=0.0):
    """A statistic of the layers above a share of the depth, averaged over the texts of a corpus."""
    take, unit, about = OF[of]
    rows = source.rows(*quantities, method=method).dropna(subset="document")
    # What leaves the last layer is left out where another quantity has no such depth.
    layers = int(rows.groupby("quantity")["layer"].max().min()) + 1
    inside = rows["layer"].between(int(np.ceil(depth * layers)), layers - 1)
    for corpus, of_corpus in rows[inside].groupby("corpus", sort=False):
        values = []
        for _, of_document in of_corpus.groupby("document"):
            values.append(take(of_document["value"].to_numpy(float), axis=0))
        yield Finding(mean_interval(values), unit, f"{about} on {CORPUS_TITLES[corpus]}", goal)


@claim_test
def small_bound(source):
    """Share of the layers with v < 1 in which d(H) decreases.

    Lemma 2 normalises after each residual sum (post-norm). Every architecture that the library
    knows adds the branch to a stream that is not normalised, so that the number decides nothing
    there.
    """
    post_norm = "needs a model that normalises after each residual sum (post-norm), as Lemma 2 does"
    bound = source.rows("v", method="trained").sort_values("layer")["value"].to_numpy(float)
    small = bound < 1
    if small.any():
        distances = source.rows("distance", method="trained")
        first = distances[distances["corpus"] == distances["corpus"].iloc[0]]
        first = first[first["document"] == 0].sort_values("layer")["value"].to_numpy(float)
        decreases = np.diff(first)[small] < 0
        share = exactly(decreases.mean(), decreases.size)
        yield Finding(
            share, "share", "of the layers with v < 1", goal=1.0, inclusive=True, reason=post_norm
        )
    else:
        smallest = exactly(bound.min(), len(bound))
        yield Finding(smallest, "", "is the smallest v", goal=1.0, less=True, reason=post_norm)


def _stream(source, rule: str) -> np.ndarray:
    """Log ratio of the stream's norm to the dense model's, above the lowest pruned layer.

    ``(documents, depths)``.
    """
    norms = {}
    for name in (rule, "dense"):
        rows = source.rows("stream norm", method=name)
        norms[name] = rows.pivot_table("value", "document", "layer").to_numpy(float)
    lowest = source.rows("alpha", method=rule)["layer"].min()
    return np.log(norms[rule] / norms["dense"])[:, lowest + 1 :]


@claim_test
def stream_changed(source):
    """How much larger the residual stream is at the top with α = 1."""
    larger = mean_interval(np.expm1(_stream(source, "alpha-1")[:, -1]))
    is_smaller = larger.value < 0
    goal = -CHANGED if is_smaller else CHANGED
    yield Finding(larger, "%", "at the top, α = 1", goal, less=is_smaller)


@claim_test
def norm_restored(source, goal):
    """Share of the deviation from the dense norm that the searched α removes.

    It is measured at the top and over all pruned layers.
    """
    unscaled = _stream(source, "alpha-1")  # (documents, depths)
    searched = _stream(source, "searched")  # (documents, depths)
    first_depths = {"at the top": -1, "over all pruned layers": 0}
    for where, first in first_depths.items():
        before = np.abs(unscaled[:, first:]).mean(axis=1)  # (documents,)
        after = np.abs(searched[:, first:]).mean(axis=1)  # (documents,)
        removed_share = mean_interval((before - after) / before.mean())
        about = f"of the deviation is gone {where}"
        change_of_norm = mean_interval(unscaled[:, first:].mean(axis=1))
        reason = ""
        if not change_of_norm.low * change_of_norm.high > 0:
            reason = "α = 1 does not change the norm"
        yield Finding(removed_share, "share", about, goal, reason=reason)


@claim_test
def alphas_alike(source):
    """The rank correlation of the α searched on two corpora."""
    rows = source.rows("alpha", method="harp").sort_values("layer", ascending=False)
    by_corpus = [part["value"].tolist() for _, part in rows.groupby("corpus", sort=False)]
    if len(by_corpus) < 2:
        raise Missing("needs α searched on two corpora")
    printed = paper("alpha_search").query("model == 'LLaMA3.1-8B'")
    printed = printed.pivot_table("value", "layer", "task").to_numpy()
    paper_value = rank_correlation(*printed.T).value
    yield Finding(rank_correlation(*by_corpus[:2]), "ρ", paper=(paper_value,))


@claim_test
def similar_layers(source):
    """Share of the layers picked by the similarity metric that are top layers.

    At least the paper's share is needed.
    """
    picked = source.result("similarity", "selection")["layers"]
    top = source.result("top", "selection")["layers"]
    printed_layers = paper("selected_layers").query("method == 'similarity'")["layer"]
    share = exactly(np.mean(np.isin(picked, top)), len(top))
    printed = float(np.mean(printed_layers >= 24))  # of 32, of which the paper prunes 8
    yield Finding(share, "share", "of its layers", goal=printed, inclusive=True, paper=(printed,))


def _worse(source, corpus: str | None, split: str, plan: str, than: str) -> Interval:
    """How much higher perplexity is with a plan than with another on a text, as a fraction.

    Without a corpus the text is the only one of the split.
    """
    likelihoods = {}
    for method in (than, plan):
        rows = source.rows("nll", "tokens", method=method)
        rows = rows[rows["split"] == split]
        if corpus is not None:
            rows = rows[rows["corpus"] == corpus]
        if rows.empty:
            raise Missing(f"needs {method} on {corpus}, {split}, of {source.store}")
        likelihoods[method] = rows.pivot_table("value", "document", "quantity")
    before = likelihoods[than]
    after = likelihoods[plan]
    return change(before["nll"], after["nll"], after["tokens"])


@claim_test
def norm_reason(source):
    """Whether the norm-keeping α beats others that shrink, and is no worse than the searched α."""
    worse = partial(_worse, source, None, "validation")
    keeping = "norm-matching"
    others = {"alpha-1": "α = 1", "reconstructing": "branch-keeping α", "constant": "α = 0.5"}
    pieces = []
    for plan, name in others.items():
        about = f"with {name} against the norm-keeping"
        pieces.append(Finding(worse(plan, keeping), "%", about))
    about = "with the norm-keeping α against the searched"
    pieces.append(Finding(worse(keeping, "searched"), "%", about, less=True))
    reason = "the search wins nothing over α = 1"
    won = Finding(worse("alpha-1", "searched"), "%", "α = 1", reason=reason)
    if won.interval.low > 0:
        yield weakest(pieces)
    else:
        yield won


@claim_test
def perplexity_change(source, worse, better, splits, at_most=None):
    """How much higher perplexity is with some plans than with another, on each text.

    In the names of plans ``{own}`` is the text's corpus and ``{other}`` the other one.
    """
    rows = source.rows("nll")
    rows = rows[rows["split"].isin(splits)]
    if "start" in rows:  # leave out the layer ranges that were tried
        rows = rows[rows["start"].isna()]
    texts = rows[["corpus", "split"]].drop_duplicates()
    about_all = {}  # what the findings have in common
    if at_most:
        about_all = {"goal": at_most, "less": True}
    if "searched-on-{other}" in worse:
        # Word perplexity, searched on × evaluated on.
        printed = paper("alpha_robustness").pivot_table("value", "method", "task").to_numpy()
        about_all["paper"] = tuple((printed[::-1] / printed).diagonal() - 1)
    corpora = texts["corpus"].unique()
    for corpus, split in texts.itertuples(index=False):
        other = next((name for name in corpora if name != corpus), corpus)
        where = "held out" if split == "validation" else "searched"
        pieces = []
        for plan in named_in(worse):
            names = [name.format(own=corpus, other=other) for name in (plan, better)]
            about = f"with {PLANS[plan]}, {CORPUS_TITLES[corpus]}, {where}"
            higher = _worse(source, corpus, split, *names)
            pieces.append(Finding(higher, "%", about, **about_all))
        yield weakest(pieces)


@claim_test
def tuned_ranges(source, at_most):
    """How much higher perplexity is with the paper's layer range than with the best one tried.

    The weakest of the baselines decides.
    """
    printed = paper("layer_ranges").set_index("model")
    printed = printed[printed.index == paper_model(source.model)]
    tried = ranges({"name": source.profile})
    if len(tried):
        tried = tried[tried["model"] == source.model].merge(printed)
    pieces = []
    for row in tried.to_dict("records"):
        about = f"with {PLANS[row['method']]}"
        pieces.append(Finding(interval(row, "above"), "%", about, at_most, less=True))
    yield weakest(pieces, "one of the paper's models")


@claim_test
def exact(source, pairs, within):
    """Share of the printed numbers of each of the paper's models that follow from its config.

    A printed number follows if the computed one is closer to it than ``within``.
    """
    counted = source.rows("removed_fraction", "ffn_share")
    for row in ratios_beside_printed(counted).to_dict("records"):
        agree = []
        for computed, printed in pairs.items():
            agree.append(abs(row[computed] - row[printed]) < within)
        about = f"of the printed numbers of {row['model']}"
        yield Finding(exactly(np.mean(agree), len(agree)), "share", about, goal=1.0, inclusive=True)


def _prefills(source, against: str) -> dict[int, list[list[float]]]:
    """The repeated seconds of another model and of HARP, by length."""
    rows = source.rows("seconds", method="all")
    rows = rows[rows["kind"] == "prefill"]
    pairs = {}
    for length, part in rows.groupby("length"):
        pair = [part[part["variant"] == name]["value"].tolist() for name in (against, "harp")]
        if min(map(len, pair)) > 1:
            pairs[int(length)] = pair
    return pairs


@claim_test
def time_saved(source, against, at="every", goal=0.0, only=None):
    """Share of another model's prefill time that HARP saves, at its weakest length.

    ``at`` is every length, the longest, or one number of tokens, which the longest then has to be.
    ``only`` names the one model of the paper that can decide.
    """
    pairs = _prefills(source, against)
    lengths = sorted(pairs)
    paper_values = ()
    if against == "dense":
        paper_values = tuple(1 - paper_times())
    if at != "every":
        lengths = lengths[-1:]
        paper_values = paper_values[-1:]
    pieces = []
    for length in lengths:
        saved = 1 - time_ratio(*pairs[length])
        about = f"of the time at {length:,} tokens"
        pieces.append(Finding(saved, "%", about, goal, paper=paper_values))
    if only and pieces and (lengths != [at] or paper_model(source.model) != only):
        reason = f"needs {only} and {at:,} tokens"
        pieces = [Finding(NOTHING, "%", goal=goal, reason=reason, paper=paper_values)]
    yield weakest(pieces, f"repeated prefills of {against}")


@claim_test
def time_saved_grows(source):
    """How much less of the dense model's time HARP takes at the longest prefill than the shortest.

    The interval is Welch's t.
    """
    pairs = _prefills(source, "dense")
    if len(pairs) < 2:
        raise Missing("needs repeated prefills of two lengths")
    first = min(pairs)
    last = max(pairs)
    log_ratios = []
    for length in (first, last):
        dense, harp = pairs[length]
        log_ratios.append(np.log(np.divide(harp, dense)))
    difference = log_ratios[0].mean() - log_ratios[1].mean()
    limits = stats.ttest_ind(*log_ratios, equal_var=False).confidence_interval()
    fall = [float(1 - np.exp(-number)) for number in (difference, *limits)]
    number_of_runs = sum(map(len, log_ratios))
    about = f"less time, relative to dense, at {last:,} than at {first:,} tokens"
    yield Finding(Interval(*fall, number_of_runs), "%", about)


@claim_test
def attention_share(source):
    """Attention's share of the time of attention and FFN, on both sides of N = d_ff.

    With fewer tokens it has to be less than half, with more tokens more.
    """
    width = int(source.rows("intermediate_size")["value"].iloc[0])
    rows = source.rows("seconds")
    rows = rows[(rows["kind"] == "split") & (rows["variant"] == "dense")]
    pieces = {"fewer": [], "more": []}  # than d_ff tokens
    for length, part in rows.groupby("length"):
        runs = part.pivot_table("value", "repetition", "part")
        if len(runs) == 1 or length == width:
            continue
        shares = mean_interval(runs["attention"] / (runs["attention"] + runs["ffn"]))
        about = f"in attention at {length:,} tokens, d_ff = {width:,}"
        side = "fewer" if length < width else "more"
        share = shares.mapped(np.clip, 0, 1)
        piece = Finding(share, "share", about, goal=0.5, less=side == "fewer")
        pieces[side].append(piece)
    if not any(pieces.values()):
        raise Missing("needs repeated splits")
    for side, measured in pieces.items():
        if measured:
            yield weakest(measured)
        else:
            reason = f"needs {side} than {width:,} tokens"
            yield Finding(NOTHING, "share", goal=0.5, less=side == "fewer", reason=reason)


@claim_test
def overtaking(source):
    """From how many times d_ff tokens on attention takes as many operations as the FFN.

    It is the lowest of the paper's models; all query-key pairs are counted.
    """
    counted = source.rows("overtaking_length", "intermediate_size")
    shapes = counted.pivot_table("value", "model", "quantity")
    multiples = shapes["overtaking_length"] / shapes["intermediate_size"]
    about = "× d_ff or later in the paper's models"
    lowest = exactly(multiples.min(), len(multiples))
    yield Finding(lowest, "", about, goal=1, less=True, inclusive=True)
