"""Numbers of the findings in notebook 06."""

from findings.notebook_05 import CHOOSING, SMALL, above_chance
from findings.stored import SMOLLM, finding
from harp_lib.report import data, figures_harp, short_tables
from harp_lib.report.comparisons import Interval
from harp_lib.report.scores import ABLATED, STRATEGIES, differences, scores
from harp_lib.report.tables import told


@finding(
    "06_ablations.ipynb",
    "(profile `small`, SmolLM2 only, {} held-out documents). Without queries and keys the top "
    "layer costs least: {:.2f} [{:.2f}, {:.2f}] nats per token, and the next cheapest is layer {} "
    "with {:.2f}. High layers do matter less (rank correlation −{:.2f}), but not steadily, because "
    "layer {}, just below those that HARP prunes, costs {:.2f} and only layer {} costs more. If "
    "the whole attention of a layer goes, the order is another one: layer {} costs least, {} nats, "
    "which is no cost, and the correlation is −{:.2f}. In {} of {} layers it costs less",
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
    is_cheaper = without_attention["value"] < without_queries["value"]
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
        is_cheaper.sum(),
        len(is_cheaper),
    )


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


@finding(
    "06_ablations.ipynb",
    "it wins back {:.0f} % of the log perplexity that pruning at α = 1 costs, on {} held-out "
    "documents.",
)
def gain_of_the_search():
    gain = data.tidy("small", "ablations", "nll", "dense nll")
    gain = gain[gain["method"] == "gain"]
    assert set(gain["model"]) == {SMOLLM}
    dense = gain[gain["quantity"] == "dense nll"]["value"].sum()
    steps = gain[gain["quantity"] == "nll"].groupby("searched")["value"].sum()
    recovered = (steps.iloc[0] - steps.iloc[-1]) / (steps.iloc[0] - dense)
    return 100 * recovered, gain["document"].nunique()


@finding(
    "06_ablations.ipynb",
    "the average rises by {} points, which is within noise. SmolLM2 was asked no generation task. "
    "The paper prints {:+.1f} points on discriminative tasks and {:+.1f} on generation tasks for "
    "LLaMA3.1-8B, and says that the search improves performance consistently; its own BoolQ goes "
    "the other way, from {:.1f} to {:.1f}.",
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
