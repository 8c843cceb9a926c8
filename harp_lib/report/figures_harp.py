"""Figures of notebook 06: which layers lose their attention."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from harp_lib.report import data, figure, plots
from harp_lib.report.comparisons import log_change
from harp_lib.report.figures_layers import rank_trend
from harp_lib.report.plots import HARP, LOOKS, PAPER, Look, span, with_paper
from harp_lib.report.scores import STRATEGIES


@figure("ablations")
def ablation_layers(profile: dict) -> Figure:
    """Which layers each strategy picks, here and in the paper."""
    ours = selected_layers(profile)
    frame = with_paper(ours, data.paper("selected_layers"))
    frame["name"] = frame["method"].map(STRATEGIES)
    frame = data.in_order(frame, "method", STRATEGIES)
    looks = {"ours": Look("ours", HARP, "s"), "paper": Look("paper", PAPER, "s")}
    layout = {
        "share": (False, True),
        "size": (5, 2.0),
        "wrap": 2,
        "x": "layer index (0 is the bottom)",
    }
    drawn = plots.dots(frame, "name", "source", looks, value="layer", **layout)
    picked = frame.pivot_table("layer", ["source", "model"], "method", aggfunc=set)
    shared = {"ours": [], "paper": []}  # per cent of the top layers, of each model
    for (source, _), of_model in picked.iterrows():
        top = of_model["top"]
        both = top & of_model["similarity"]
        shared[source].append(100 * (len(both) / len(top)))
    title = (
        f"Of the layers that HARP prunes, Similarity picks {span(shared['ours'], '.0f')} %; "
        f"in the paper {span(shared['paper'], '.0f')} %"
    )
    return plots.finish(drawn, title, "")


@figure("ablations")
def ablation_single_layers(profile: dict) -> Figure:
    """Rise of log perplexity when one layer is pruned and all others are dense, by its index."""
    frame, num_pruned = single_layers(profile)
    looks = {
        1: LOOKS["alpha-1"]._replace(label="queries and keys removed (α = 1)"),
        0: LOOKS["alpha-0"]._replace(label="the whole attention removed (α = 0)"),
    }
    layout = {
        "bars": True,
        "size": (5.6, 3.6),
        "wrap": 2,
        "share": (False, True),
        "x": "layer index (0 is the bottom)",
        "y": "rise of log perplexity\n(nats per token; linear below 0.1)",
    }
    drawn = plots.lines(frame, "layer", "alpha", looks, **layout)
    for axis, part in drawn.panels:
        last = part["layer"].max()
        pruned = num_pruned[part["model"].iloc[0]]
        axis.axvspan(
            last - pruned + 0.5,
            last + 0.5,
            color="black",
            alpha=0.07,
            lw=0,
            label="layers that HARP prunes",
        )
        axis.set_yscale("symlog", linthresh=0.1, linscale=0.6)
        axis.yaxis.set_major_locator(FixedLocator([-0.1, -0.03, 0, 0.03, 0.1, 0.3, 1, 3, 10]))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    trend = {alpha: span(rank_trend(frame[frame["alpha"] == alpha]), "+.2f") for alpha in looks}
    title = (
        f"Does a higher layer cost less? Rank correlation {trend[1]} without queries and keys, "
        f"{trend[0]} without attention"
    )
    limits = (min(0, frame["low"].min()) - 0.02, 2 * frame["value"].max())
    note = "{model}95 % intervals over {documents} held-out documents"
    return plots.finish(drawn, title, note, level=0, ylim=limits)


def selected_layers(profile: dict) -> pd.DataFrame:
    """The layers that each strategy picks. Columns: model, method (the strategy), layer."""
    rows = []
    for (model, strategy, _), cell in data.cells(profile["name"], "ablations").items():
        for layer in cell["result"].get("layers", ()):
            rows.append((model, strategy, layer))
    return pd.DataFrame(rows, columns=["model", "method", "layer"])


def single_layers(profile: dict) -> tuple[pd.DataFrame, dict[str, int]]:
    """Rise of log perplexity when one layer is pruned, and how many layers HARP prunes by model.

    Columns: model, alpha, layer, value, low, high (nats per token), documents.
    """
    stored = data.tidy(profile["name"], "ablations", "nll", "dense nll", "tokens")
    stored = stored[stored["method"] == "single-layer"]
    documents = stored.pivot_table("value", ["model", "document"], "quantity")
    rows = []
    pruned = stored[stored["quantity"] == "nll"].astype({"layer": int, "alpha": int})
    for (model, alpha, layer), part in pruned.groupby(["model", "alpha", "layer"], sort=False):
        dense = documents.loc[model].loc[part["document"]]
        rise = log_change(dense["dense nll"], part["value"], dense["tokens"])
        rows.append((model, alpha, layer, *rise))
    columns = ["model", "alpha", "layer", "value", "low", "high", "documents"]
    frame = pd.DataFrame(rows, columns=columns).sort_values("alpha", ascending=False, kind="stable")
    num_pruned = stored.groupby("model")["num_pruned"].first().astype(int).to_dict()
    return frame.reset_index(drop=True), num_pruned
