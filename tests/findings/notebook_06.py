"""Numbers of the findings in notebook 06."""

from findings.notebook_05 import CHOOSING, GENERATION, SMALL, above_chance
from findings.notebook_05_likelihood import likelier, written
from findings.stored import SMOLLM, finding, judgements
from harp_lib.report import data, figures_harp, likelihoods, short_tables
from harp_lib.report.comparisons import Interval, change, mean_interval, rank_correlation
from harp_lib.report.scores import ABLATED, STRATEGIES, differences, scores
from harp_lib.report.tables import told


@finding(
    "06_ablations.ipynb",
    "(profile `small`, SmolLM2 only, {} held-out documents). Without queries and keys the top "
    "layer costs least: {:.2f} [{:.2f}, {:.2f}] nats per token, and the next cheapest is layer {} "
    "with {:.2f}. High layers do matter less (rank correlation −{:.2f}), but not steadily, because "
    "layer {}, just below those that HARP prunes, costs {:.2f} and only layer {} costs more. If "
    "the whole attention of a layer goes, the order is another one: layer {} costs least, {} nats, "
    "which is no cost, and the correlation is −{:.2f}.",
)
def single_layers():
    frame, num_pruned = figures_harp.single_layers(SMALL)
    assert set(frame["model"]) == {SMOLLM}
    (documents,) = frame["documents"].unique()
    without_queries = frame[frame["alpha"] == 1].set_index("layer")
    without_attention = frame[frame["alpha"] == 0].set_index("layer")
    cheapest = without_queries.sort_values("value")
    assert cheapest.index[0] == len(cheapest) - 1
    dear = len(cheapest) - num_pruned[SMOLLM] - 1
    assert cheapest.index[-2] == dear
    trend = figures_harp.rank_trend(frame[frame["alpha"] == 1])[SMOLLM]
    trend_of_attention = figures_harp.rank_trend(frame[frame["alpha"] == 0])[SMOLLM]
    least = without_attention["value"].idxmin()
    interval = without_attention.loc[least, ["value", "low", "high"]]
    assert interval["low"] < 0 < interval["high"]
    return (
        documents,
        *cheapest.iloc[0][["value", "low", "high"]],
        cheapest.index[1],
        cheapest["value"].iloc[1],
        -trend,
        dear,
        without_queries.loc[dear, "value"],
        cheapest.index[-1],
        least,
        told(*interval, form=".3f"),
        -trend_of_attention,
    )


@finding(
    "06_ablations.ipynb",
    "The verdict averages the correlations of single documents, {} and {}, and needs a whole "
    "interval below −0.5, a threshold of ours; so neither of the two holds.",
)
def correlations_of_the_verdict():
    stored = data.tidy("small", "ablations", "nll")
    stored = stored[stored["method"] == "single-layer"]
    intervals = {}
    for alpha, of_alpha in stored.groupby("alpha"):
        correlations = []
        for _, document in of_alpha.groupby("document"):
            correlations.append(rank_correlation(document["layer"], document["value"]).value)
        intervals[alpha] = mean_interval(correlations)
    judged = judgements().set_index("id").loc["high-layers-one-by-one"]
    assert judged["value"] == intervals[0].value
    assert judged["goal"] == -0.5
    assert judged["held"] == 0
    assert all(interval.high > -0.5 for interval in intervals.values())
    return told(*intervals[1][:3], form=".2f"), told(*intervals[0][:3], form=".2f")


@finding(
    "06_ablations.ipynb",
    "In {} of {} layers it costs less to remove the whole attention than to keep its values at "
    "α = 1. So α = 1 is a poor choice for most single layers. That α = 0 is better does not show "
    "that a search is needed; notebook 02 compares",
)
def cheaper_without_attention():
    frame, _ = figures_harp.single_layers(SMALL)
    costs = frame.pivot_table("value", "layer", "alpha")
    is_cheaper = costs[0] < costs[1]
    return is_cheaper.sum(), len(is_cheaper)


@finding(
    "06_ablations.ipynb",
    "Similarity picks {} of the {} top layers; its other two are layers {} and {}, where",
)
def layers_of_similarity():
    layers = figures_harp.selected_layers(SMALL).groupby("method")["layer"].agg(list)
    in_top = set(layers["similarity"]) & set(layers["top"])
    others = sorted(set(layers["similarity"]) - in_top)
    return len(in_top), len(layers["top"]), *others


@finding(
    "06_ablations.ipynb",
    "among them layer {}, the one that is dear to lose. In the paper, on LLaMA3.1-8B, Similarity "
    "picks {} of the {} top layers and Hessian {}.",
)
def layers_of_hessian():
    layers = figures_harp.selected_layers(SMALL).groupby("method")["layer"].agg(list)
    assert 23 in layers["hessian"]
    similarity = {23, 24, 25, 26, 27, 28, 29, 30}  # as the paper's text has them, of 32
    hessian = {12, 13, 14, 15, 19, 22, 24, 26}
    top = set(range(24, 32))
    return 23, len(similarity & top), len(top), len(hessian & top)


@finding(
    "06_ablations.ipynb",
    "SmolLM2 only, {} questions). The scores cannot rank the four choices of layers: Top is {} "
    "points ahead of Bottom, {} of Hessian and {} of Similarity, and no interval leaves out zero.",
)
def leads_of_the_top_layers():
    leads = differences(SMALL, ABLATED, {"": CHOOSING}, "top", STRATEGIES).set_index("method")
    others = leads.loc[["bottom", "hessian", "similarity"]]
    assert ((others["low"] < 0) & (others["high"] > 0)).all()
    (questions,) = others["questions"].unique()
    ends = others[["value", "low", "high"]].to_numpy()
    return [questions, *(told(*interval) for interval in ends)]


@finding(
    "06_ablations.ipynb",
    "it averages {:.1f} %, and is above chance on PIQA alone. The paper prints {:.1f} for Top on "
    "LLaMA3.1-8B, {:.1f} for Similarity, {:.1f} for Hessian and {:.1f} for Bottom",
)
def averages_of_strategies():
    assert above_chance(SMOLLM, CHOOSING) == ["piqa"]
    frame = scores(SMALL, ABLATED, CHOOSING, STRATEGIES)
    averages = frame[frame["task"] == "average"].set_index("method")["value"]
    _, printed = short_tables.averages_of_strategies(SMALL | {"datasets": "hub"})
    printed = printed[printed["source"] == "paper"].set_index("method")["average"]
    return averages["dense"], *printed[["top", "similarity", "hessian", "bottom"]]


def margin_lost(method: str) -> Interval:
    """Nats of the right choice's margin that an ablated model loses against the dense one."""
    changes = likelihoods.changes_against_dense(
        SMALL, {"": CHOOSING}, ["dense", *STRATEGIES, "harp"]
    )
    is_asked = (changes["model"] == SMOLLM) & (changes["method"] == method)
    (row,) = changes[is_asked][["value", "low", "high"]].to_numpy()
    return Interval(*row)


@finding(
    "06_ablations.ipynb",
    "Top loses {:.2f} [{:.2f}, {:.2f}] nats, Similarity {:.2f} [{:.2f}, {:.2f}], Hessian {:.2f} "
    "[{:.2f}, {:.2f}] and Bottom {:.2f} [{:.2f}, {:.2f}]. Question by question, Top is ahead of "
    "Similarity by {:.2f} [{:.2f}, {:.2f}] nats and Similarity of Hessian by {:.2f} [{:.2f}, "
    "{:.2f}]; Hessian and Bottom are not told apart.",
)
def margins_rank_the_layers():
    losses = [margin_lost(method) for method in ("top", "similarity", "hessian", "bottom")]
    top = likelier(SMOLLM, "top", "similarity", CHOOSING)
    similarity = likelier(SMOLLM, "similarity", "hessian", CHOOSING)
    hessian = likelier(SMOLLM, "hessian", "bottom", CHOOSING)
    assert min(top.low, similarity.low) > 0
    assert hessian.low < 0 < hessian.high
    judged = judgements().set_index("id").loc["top-layers"]
    assert judged["by likelihood value"] == top.value
    return [end for interval in (*losses, top, similarity) for end in interval[:3]]


@finding(
    "06_ablations.ipynb",
    "The right choice keeps {:.2f} [{:.2f}, {:.2f}] nats more of its margin, and the reference "
    "answers of TriviaQA, NaturalQuestions, GSM8K and MATH need {:.2f} [{:.2f}, {:.2f}] bits per "
    "byte less, about half of what pruning at α = 1 adds. All four tasks with written answers "
    "gain. Of those with choices ARC-Challenge gains {:.2f} [{:.2f}, {:.2f}] nats and OpenBookQA "
    "{:.2f} [{:.2f}, {:.2f}], though the dense model is above chance on neither; on the other "
    "four no gain is shown.",
)
def likelihoods_of_the_search():
    judged = judgements().set_index("id")
    numbers = []
    for claim in ("alpha-discriminative", "alpha-generation"):
        ends = [judged.loc[claim, f"by likelihood {end}"] for end in ("value", "low", "high")]
        assert ends[1] > 0
        numbers += ends
    added = likelihoods.changes_against_dense(SMALL, {"": GENERATION}, ["dense", "top"])
    (added,) = added[added["model"] == SMOLLM]["value"]
    assert 0.4 < numbers[3] / added < 0.6
    for task in written(SMOLLM):
        assert likelier(SMOLLM, "harp", "top", [task]).low > 0
    gains = {task: likelier(SMOLLM, "harp", "top", [task]) for task in CHOOSING}
    gaining = [task for task, gain in gains.items() if gain.low > 0]
    assert gaining == ["arc_challenge", "openbookqa"]
    assert not set(gaining) & set(above_chance(SMOLLM, CHOOSING))
    return *numbers, *(end for task in gaining for end in gains[task][:3])


@finding(
    "06_ablations.ipynb",
    "it wins back {:.0f} % [{:.0f}, {:.0f}], over {} held-out documents of WikiText-2 that no "
    "figure here shows. Perplexity itself is {:.0f} % higher at α = 1 than with the searched α; "
    "the README has that ratio on the other documents of notebook 02.",
)
def gain_of_the_search():
    gain = data.tidy("small", "ablations", "nll", "dense nll", "tokens")
    gain = gain[gain["method"] == "gain"]
    assert set(gain["model"]) == {SMOLLM}
    counted = gain[gain["quantity"] != "nll"].pivot_table("value", "document", "quantity")
    steps = gain[gain["quantity"] == "nll"].pivot_table("value", "document", "searched")
    unscaled = steps.iloc[:, 0]
    searched = steps.iloc[:, -1]
    recovered = mean_interval(unscaled - searched, unscaled - counted["dense nll"])
    higher = change(searched, unscaled, counted["tokens"])
    ends = (100 * end for end in recovered[:3])
    return *ends, recovered.n, 100 * higher.value


@finding(
    "06_ablations.ipynb",
    "In `small` that is PIQA alone, so our {:+.1f} and {:+.1f} points and the paper's {:+.1f} and "
    "{:+.1f} beside them are of PIQA",
)
def one_task_of_the_verdict():
    judged = judgements().set_index("id")
    numbers = []
    for column in ("value", "paper"):
        for claim in ("top-layers", "alpha-discriminative"):
            assert judged.loc[claim, "about"].endswith("above chance (1 of 6)")
            numbers.append(judged.loc[claim, column])
    return *numbers[:2], *(printed for (printed,) in numbers[2:])


@finding(
    "06_ablations.ipynb",
    "the average rises by {} points, which is within noise. SmolLM2 was not asked to write "
    "answers. The paper prints {:+.1f} points on discriminative tasks and {:+.1f} on generation "
    "tasks for LLaMA3.1-8B, and says that the search improves performance consistently; its own "
    "BoolQ goes the other way, from {:.1f} to {:.1f}.",
)
def scores_of_the_search():
    leads = differences(SMALL, ABLATED, {"": CHOOSING}, "harp", ["top"])
    lead = Interval(*leads.iloc[0][["value", "low", "high"]])
    assert lead.low < 0 < lead.high
    paper = data.paper("alpha_ablation")
    paper = paper[paper["model"] == "LLaMA3.1-8B"].pivot_table("value", "method", "task")
    gains = paper.loc["harp"] - paper.loc["top"]
    return (
        told(*lead[:3]),
        gains["average discriminative"],
        gains["average generation"],
        paper.loc["top", "boolq"],
        paper.loc["harp", "boolq"],
    )
