"""Figures of notebooks 06 and 09: which layers lose their attention, and what a refit wins."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from harp_lib.names import CORPUS_TITLES, display_name
from harp_lib.report import comparisons, data, figure, plots, table
from harp_lib.report.comparisons import log_change
from harp_lib.report.figures_layers import rank_trend
from harp_lib.report.plots import HARP, LOOKS, PAPER, Look, span, with_paper
from harp_lib.report.scores import STRATEGIES
from harp_lib.report.tables import ENDS, Table, lines, stacked

REFIT = "harp+refit"
TWO = "harp+refit-two"  # fitted on two kinds of text
CHOSEN = "harp+refit-chosen"  # the same, of the layers that a linear map explains best
REFIT_ON_TWO = LOOKS[REFIT]._replace(label="HARP+refit, two kinds of text", line="--", hollow=True)
FRONTIER = {
    "alpha-0": LOOKS["alpha-0"],
    "harp": LOOKS["harp"],
    REFIT: LOOKS[REFIT],
    TWO: REFIT_ON_TWO,
    CHOSEN: REFIT_ON_TWO._replace(
        label="the same, the layers explained best", line=":", marker="D"
    ),
}
RIVALS = {
    "nbl": Look("NBL", "#a6761d", "v"),
    "linear": Look("least squares, full rank", "#e7298a", "^"),
    "neighbours": Look("own, previous and first token", "#66a61e", "P"),
    "windowed": Look("window of 32, 4 sinks (keeps Q, K)", "#5a5a5a", "D"),
    "boundary": Look("K, V from below (keeps Q, cache)", "#1b9e9e", "X"),
}
SHOWN = FRONTIER | RIVALS
PASSKEY = "passkey"
TEXTS = CORPUS_TITLES | {PASSKEY: "pass key (retrieval)"}
COSTS = ("prefill left", "decode left", "cache left", "counted at", "seconds")


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


def changes(profile: dict, reference: str = "dense") -> pd.DataFrame:
    """Perplexity as a multiple of the dense model's, or of another kind's with as many layers.

    Parameters
    ----------
    profile : dict
        Its name says which stored cells are read.
    reference : str
        The kind of layers that others are compared with, or ``dense``.

    Returns
    -------
    DataFrame
        Columns: model, kind, layers (changed), corpus, perplexity, one with the reference's name
        (its perplexity), documents, value, low, high (the multiple, paired by document), text.
    """
    whole = data.documents(profile["name"], "frontier")
    texts = {}
    if len(whole):
        keys = ["model", "method", "layers", "corpus"]
        texts = dict(list(whole.groupby(keys, sort=False)))
    rows = []
    for (model, kind, layers, corpus), after in texts.items():
        layers_before = 0 if reference == "dense" else layers
        before = texts.get((model, reference, layers_before, corpus))
        if before is None or kind == reference:
            continue
        rows.append((model, kind, int(layers), corpus, *_compared(before, after)))
    columns = ["model", "kind", "layers", "corpus", "perplexity", reference, "documents", *ENDS]
    frame = pd.DataFrame(rows, columns=columns)
    frame["text"] = frame["corpus"].map(TEXTS)
    return frame


def _compared(before: pd.DataFrame, after: pd.DataFrame) -> list[float]:
    """Two perplexities on the same documents, as :func:`changes` has them in its columns.

    They are the second, the first, the number of documents, and the second as a multiple of the
    first: its value, low and high end.
    """
    tokens = after["tokens"]
    perplexity_after, _ = comparisons.perplexity_and_error(after["nll"], tokens)
    perplexity_before, _ = comparisons.perplexity_and_error(before["nll"], tokens)
    *change, documents = comparisons.change(before["nll"], after["nll"], tokens)
    multiple = 1 + np.array(change)  # value, low, high
    return [perplexity_after, perplexity_before, documents, *multiple]


def sentence_on_most_layers(profile: dict) -> str:
    """The perplexity of each kind where the most layers are value-only, in a sentence."""
    frame = changes(profile).query("corpus != @PASSKEY")
    frame = frame[_has_most_layers(frame)]
    multiples = {kind: span(part["value"], ".1f") for kind, part in frame.groupby("kind")}
    return (
        f"Without {span(frame['layers'], '.0f')} layers perplexity is {multiples['harp']} times "
        f"the dense model's by HARP, {multiples[REFIT]} refitted, "
        f"{multiples[TWO]} on two kinds of text, {multiples[CHOSEN]} if layers are chosen too"
    )


def refit_found(profile: dict) -> pd.DataFrame:
    """Perplexity of refitted layers against HARP's.

    The layers are those at the top, and the largest number that was chosen.
    """
    keys = ["model", "kind", "layers", "corpus"]
    frame = changes(profile, "harp").merge(changes(profile)[[*keys, "dense"]], on=keys)
    at_the_top = (frame["kind"] == REFIT) & _usual(frame)
    is_text = frame["corpus"] != PASSKEY
    chosen = (frame["kind"] == CHOSEN) & _has_most_layers(frame) & is_text
    which = {REFIT: "at the top", CHOSEN: "explained best, fitted on both texts"}
    frame["which"] = frame["kind"].map(which)
    frame = pd.concat([frame[at_the_top], frame[chosen]]).sort_values("model", kind="stable")
    columns = {
        "model": "{model}",
        "layers": "{layers} {which}",
        "text": "{text}",
        "dense": "{dense:.1f}",
        "HARP": "{harp:.1f}",
        "refitted": "{perplexity:.1f}",
        "times HARP's": "{value:.2f} [{low:.2f}, {high:.2f}]",
        "documents": "{documents:.0f}",
    }
    return stacked(lines(frame, columns))


def _has_most_layers(frame: pd.DataFrame) -> pd.Series:
    """Whether as many layers of a model are changed as in any row of the frame."""
    return frame["layers"] == frame.groupby("model")["layers"].transform("max")


def _usual(frame: pd.DataFrame) -> pd.Series:
    """Whether as many layers are changed as in the other notebooks: rivals are compared there."""
    num_usual = frame[frame["kind"].isin(RIVALS)].groupby("model")["layers"].max()
    return frame["layers"] == frame["model"].map(num_usual)


@figure("frontier")
def frontier(profile: dict) -> Figure:
    """Perplexity against the number of layers that have no attention."""
    frame = changes(profile).query("kind in @FRONTIER and corpus != @PASSKEY")
    layout = {
        "bars": True,
        "panel": ["model", "text"],
        "wrap": 2,
        "x": "value-only layers",
        "y": "times the dense perplexity (log scale)",
    }
    drawn = plots.lines(frame, "layers", "kind", FRONTIER, **layout)
    note = (
        "{model}95 % intervals over {documents} documents; "
        "the layers at the top, but for the dotted line"
    )
    return plots.finish(drawn, sentence_on_most_layers(profile), note, log="y", level=1)


@figure("frontier")
def frontier_rivals(profile: dict) -> Figure:
    """Perplexity with other replacements of attention in as many layers, also for finding a key."""
    frame = changes(profile)
    frame = data.in_order(frame[_usual(frame)], "kind", SHOWN)
    frame["title"] = [SHOWN[kind].label for kind in frame["kind"]]
    frame["panel"] = frame["model"].map(display_name) + "\n" + frame["text"]
    layout = {
        "panel": "panel",
        "wrap": 3,
        "size": (4.6, 2.6),
        "share": (False, True),
        "x": "times the dense perplexity (log scale)",
    }
    drawn = plots.dots(frame, "title", "kind", SHOWN, **layout)
    for axis, _ in drawn.panels:
        axis.axvline(1, color=plots.DENSE, linewidth=1)
    keys = frame[frame["corpus"] == PASSKEY]
    levels = {kind: span(part["perplexity"], ".1f") for kind, part in keys.groupby("kind")}
    title = (
        f"Finding a key: perplexity {span(keys['dense'], '.1f')} dense, {levels[REFIT]} refitted, "
        f"{levels['windowed']} with a window, "
        f"{levels['boundary']} with keys and values from below"
    )
    return plots.finish(drawn, title, "{model}95 % intervals over {documents} documents", log="x")


@figure("frontier")
def explained_variance(profile: dict) -> Figure:
    """How much of an attention's variance a linear map of its own token explains, by layer."""
    frame = data.tidy(profile["name"], "frontier", "explained")
    frame = frame.rename(columns={"method": "kind"})
    is_dense = frame["kind"] == "dense"
    frame = frame[is_dense | (_has_most_layers(frame) & (frame["kind"] != CHOSEN))]
    looks = {
        "dense": Look("each layer alone, the others dense", plots.DENSE, "s"),
        REFIT: FRONTIER[REFIT],
        TWO: FRONTIER[TWO],
    }
    layout = {"wrap": 3, "share": (False, True), "x": "layer index", "y": "explained variance"}
    drawn = plots.lines(frame, "layer", "kind", looks, **layout)
    dense = frame[frame["kind"] == "dense"]
    title = f"A token's own values explain {span(dense['value'])} of what attention puts out"
    return plots.finish(drawn, title, "{model}of the calibration text itself", ylim=(0, 1))


@table("frontier")
def frontier_costs(profile: dict) -> Table:
    """What refitting wins against HARP on each text, and what its layers cost."""
    fitted = {REFIT: "one text", TWO: "two texts", CHOSEN: "two texts, layers explained best"}
    parts = []
    for _, part in changes(profile, "harp").groupby("model", sort=False):
        for kind in fitted:
            parts.append(part[part["kind"] == kind])
    fits = data.tidy(profile["name"], "frontier", *COSTS)
    fits = fits.pivot_table("value", ["model", "method", "layers"], "quantity")
    frame = pd.concat(parts).join(fits, on=["model", "kind", "layers"])
    frame = frame.assign(fitted=frame["kind"].map(fitted))
    columns = {
        "model": "{model}",
        "layers": "{layers}",
        "fitted on": "{fitted}",
        "text": "{text}",
        "HARP": "{harp:.2f}",
        "refitted": "{perplexity:.2f}",
        "multiple": "{value:.3f} [{low:.3f}, {high:.3f}]",
        "documents": "{documents:.0f}",
        "prefill left": "{prefill left:.1%}",
        "decode left": "{decode left:.1%}",
        "cache left": "{cache left:.1%}",
        "fit, s": "{seconds:.0f}",
    }
    return stacked(lines(frame, columns)), frame
