"""Figures of notebooks 03, 06 and 09: the search for α, what is left without it or in other layers,
and the refit.
"""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.pyplot import get_cmap
from matplotlib.ticker import FixedLocator

from harp_lib.names import CORPUS_TITLES
from harp_lib.report import comparisons, data, figure, plots, table
from harp_lib.report.comparisons import log_change
from harp_lib.report.figures_layers import rank_trend
from harp_lib.report.plots import HARP, LOOKS, PAPER, Look, span, with_paper
from harp_lib.report.scores import STRATEGIES
from harp_lib.report.tables import ENDS, Table, lines, perplexities, stacked

REFIT, TWO, CHOSEN = "harp+refit", "harp+refit-two", "harp+refit-chosen"
FRONTIER = {name: LOOKS[name] for name in ("alpha-0", "harp", REFIT)}
FRONTIER[TWO] = LOOKS[REFIT]._replace(label="HARP+refit, two kinds of text", line="--", hollow=True)
FRONTIER[CHOSEN] = FRONTIER[TWO]._replace(
    label="the same, the layers explained best", line=":", marker="D"
)
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


@figure("alpha_search")
def alpha_curves(profile: dict) -> Figure:
    """Perplexity against α, a line for each searched layer: those above have their best α, those
    below are dense.
    """
    frame = data.tidy(profile["name"], "alpha_search", "perplexity").query("method == 'harp'")
    searched = (
        perplexities(profile, "alpha_search")
        .query("split == 'test'")
        .drop_duplicates(["model", "corpus"])
    )
    frame = frame.merge(searched[["model", "corpus", "documents"]], how="left")
    frame["text"] = frame["corpus"].map(CORPUS_TITLES)
    frame["depth"] = frame.groupby("model")["layer"].transform("max") - frame["layer"]
    depths = sorted(frame["depth"].unique())
    shades = zip(depths, get_cmap("viridis")(np.linspace(0.05, 0.9, len(depths))), strict=True)
    looks = {
        depth: Look(f"{depth:.0f} below" if depth else "top layer", shade, ".")
        for depth, shade in shades
    }
    layout = {"panel": ["model", "text"], "wrap": 2, "size": (4.4, 2.6), "share": (True, False)}
    layout |= {"x": "α of the layer", "y": "perplexity per token (log scale)"}
    drawn = plots.lines(frame, "alpha", "depth", looks, **layout)
    best = frame.loc[frame.groupby(["model", "text", "depth"], sort=False)["value"].idxmin()]
    for axis, part in drawn.panels:
        mine = best.loc[best.index.intersection(part.index)]
        axis.scatter(
            mine["alpha"],
            mine["value"],
            s=60,
            facecolor="none",
            edgecolor="black",
            zorder=3,
            label="best α",
        )
    inner = best["alpha"].between(0, 1, inclusive="neither").sum()
    title = f"The best α lies between 0 and 1 in {inner} of {len(best)} searches"
    note = "{model}{documents} documents, those that α is searched on"
    return plots.finish(drawn, title, note, log="y")


@figure("alpha_search")
def alpha_by_layer(profile: dict) -> Figure:
    """Searched α against layer index: the paper's figure, from its numbers, and ours."""
    ours = data.tidy(profile["name"], "alpha_search", "alpha").query("method == 'harp'")
    frame = with_paper(ours, data.paper("alpha_search").rename(columns={"task": "corpus"}))
    frame["panel"] = frame["model"].map(plots.short) + "\n" + frame["corpus"].map(CORPUS_TITLES)
    frame["kind"] = frame["source"].replace("ours", "harp")
    layout = {
        "panel": "panel",
        "share": (False, True),
        "size": (3, 2.2),
        "x": "layer index",
        "y": "searched α",
    }
    drawn = plots.bars(frame, "layer", "kind", **layout)
    for axis, _ in drawn.panels:
        for bars in axis.containers:
            axis.bar_label(bars, fmt="%g", fontsize=7.5)
    here, paper = (
        span(rank_trend(part.assign(model=part["panel"])), "+.2f")
        for _, part in frame.groupby("source")
    )
    title = f"Does α rise with the layer? Rank correlation {paper} in the paper (grey), {here} here (blue)"
    return plots.finish(drawn, title, "", ylim=(0, 1.1))


@figure("alpha_search")
def alpha_held_out(profile: dict) -> Figure:
    """Perplexity of the dense model and of each choice of α on held-out text; the paper's two by
    two beside it.
    """
    ours = (
        perplexities(profile, "alpha_search").query("split == 'validation'").drop(columns="error")
    )
    ours["kind"] = ours["method"].where(ours["method"].isin(LOOKS), "harp")
    printed = data.paper("alpha_robustness").rename(columns={"task": "corpus"})
    frame = with_paper(ours, printed.assign(kind="paper"))
    own = frame["method"] == "searched-on-" + frame["corpus"]
    searched = own.map({True: "α searched on this text", False: "α searched on the other"})
    searched = searched.mask(
        frame["method"].str.startswith("resampled"), "α of a second sample of this text"
    )
    frame["name"] = (
        frame["method"].map({method: look.label for method, look in LOOKS.items()}).fillna(searched)
    )
    frame["text"] = frame["corpus"].map(CORPUS_TITLES)
    order = ["searched on this", "second sample", "searched on the other"]
    places = {
        name: next((i for i, part in enumerate(order) if part in name), len(order))
        for name in set(frame["name"])
    }
    frame = frame.sort_values("name", key=lambda names: names.map(places), kind="stable")
    frame = frame.sort_values(["source", "model"], kind="stable", ascending=[False, True])
    layout = {
        "panel": ["model", "text"],
        "size": (3.4, 2.6),
        "x": "perplexity per token (log scale)",
    }
    mean = {kind: span(part["value"], ".0f") for kind, part in ours.groupby("kind")}
    title = f"On held-out text perplexity is {mean['harp']} with a searched α, {mean['alpha-1']} with α = 1"
    note = "{model}95 % intervals over {documents} documents; the paper's perplexities are per word"
    return plots.finish(
        plots.dots(frame, "name", "kind", **layout), title, plots.about(ours, note), log="x"
    )


@figure("ablations")
def ablation_layers(profile: dict) -> Figure:
    """Which layers each strategy picks, here and in the paper."""
    ours = selected_layers(profile)
    frame = with_paper(ours, data.paper("selected_layers"))
    frame["name"] = frame["method"].map(STRATEGIES)
    frame = frame.sort_values(
        "method", key=lambda names: names.map(list(STRATEGIES).index), kind="stable"
    )
    looks = {"ours": Look("ours", HARP, "s"), "paper": Look("paper", PAPER, "s")}
    layout = {
        "share": (False, True),
        "size": (5, 2.0),
        "wrap": 2,
        "x": "layer index (0 is the bottom)",
    }
    picked = frame.pivot_table("layer", ["source", "model"], "method", aggfunc=set)
    shared = [
        len(top & alike) / len(top)
        for top, alike in zip(picked["top"], picked["similarity"], strict=True)
    ]
    said = {
        source: span(100 * part, ".0f")
        for source, part in pd.Series(shared, picked.index).groupby("source")
    }
    title = f"Of the layers that HARP prunes, Similarity picks {said['ours']} %; in the paper {said['paper']} %"
    return plots.finish(
        plots.dots(frame, "name", "source", looks, value="layer", **layout), title, ""
    )


@figure("ablations")
def ablation_single_layers(profile: dict) -> Figure:
    """Rise of log perplexity when one layer is pruned and all others are dense, by its index."""
    frame, num_pruned = single_layers(profile)
    looks = {
        1: LOOKS["alpha-1"]._replace(label="queries and keys removed (α = 1)"),
        0: LOOKS["alpha-0"]._replace(label="the whole attention removed (α = 0)"),
    }
    layout = {"bars": True, "size": (5.6, 3.6), "wrap": 2, "share": (False, True)}
    layout |= {
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
    title = f"Does a higher layer cost less? Rank correlation {trend[1]} without queries and keys, {trend[0]} "
    ends = (min(0, frame["low"].min()) - 0.02, 2 * frame["value"].max())
    note = "{model}95 % intervals over {documents} held-out documents"
    return plots.finish(drawn, title + "without attention", note, level=0, ylim=ends)


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
    found = data.tidy(profile["name"], "ablations", "nll", "dense nll", "tokens")
    found = found[found["method"] == "single-layer"]
    whole = found.pivot_table("value", ["model", "document"], "quantity")
    rows = []
    layers = found[found["quantity"] == "nll"].astype({"layer": int, "alpha": int})
    for (model, alpha, layer), part in layers.groupby(["model", "alpha", "layer"], sort=False):
        of_documents = whole.loc[model].loc[part["document"]]
        rise = log_change(of_documents["dense nll"], part["value"], of_documents["tokens"])
        rows.append((model, alpha, layer, *rise))
    columns = ["model", "alpha", "layer", "value", "low", "high", "documents"]
    frame = pd.DataFrame(rows, columns=columns).sort_values("alpha", ascending=False, kind="stable")
    num_pruned = found.groupby("model")["num_pruned"].first().astype(int).to_dict()
    return frame.reset_index(drop=True), num_pruned


def changes(profile: dict, reference: str = "dense") -> pd.DataFrame:
    """Perplexity as a multiple of the dense model's, or of another kind's.

    The other kind has as many layers changed. Columns: model, kind, layers, corpus, perplexity, the
    reference's, documents, value, low, high (the multiple, paired by document), text.
    """
    whole = data.documents(profile["name"], "frontier")
    keys = ["model", "method", "layers", "corpus"]
    texts = dict(list(whole.groupby(keys, sort=False))) if len(whole) else {}
    rows = []
    for (model, kind, layers, corpus), after in texts.items():
        layers_before = 0 if reference == "dense" else layers
        before = texts.get((model, reference, layers_before, corpus))
        if before is None or kind == reference:
            continue
        tokens = after["tokens"]
        level, _ = comparisons.perplexity(after["nll"], tokens)
        level_before, _ = comparisons.perplexity(before["nll"], tokens)
        *change, documents = comparisons.change(before["nll"], after["nll"], tokens)
        multiple = 1 + np.array(change)
        key = (model, kind, int(layers), corpus)
        rows.append((*key, level, level_before, documents, *multiple))
    columns = ["model", "kind", "layers", "corpus", "perplexity", reference, "documents", *ENDS]
    frame = pd.DataFrame(rows, columns=columns)
    frame["text"] = frame["corpus"].map(TEXTS)
    return frame


def told(profile: dict) -> str:
    """What the most layers cost that go, in a sentence."""
    found = changes(profile).query("corpus != @PASSKEY")
    found = found[found["layers"] == found.groupby("model")["layers"].transform("max")]
    said = {kind: span(part["value"], ".1f") for kind, part in found.groupby("kind")}
    return (
        f"Without {span(found['layers'], '.0f')} layers perplexity is {said['harp']} times the dense model's by HARP, "
        f"{said[REFIT]} refitted, {said[TWO]} on two kinds of text, {said[CHOSEN]} if layers are chosen too"
    )


def refit_found(profile: dict) -> pd.DataFrame:
    """Perplexity refitted against HARP's: of the layers at the top, and of the most that were
    chosen.
    """
    frame, keys = changes(profile, "harp"), ["model", "kind", "layers", "corpus"]
    frame = frame.merge(changes(profile)[[*keys, "dense"]], on=keys)
    top = (frame["kind"] == REFIT) & _usual(frame)
    most = frame["layers"] == frame.groupby("model")["layers"].transform("max")
    chosen = (frame["kind"] == CHOSEN) & most & (frame["corpus"] != PASSKEY)
    frame["which"] = frame["kind"].map(
        {REFIT: "at the top", CHOSEN: "explained best, fitted on both texts"}
    )
    columns = {
        "model": "{model}",
        "layers": "{layers} {which}",
        "text": "{text}",
        "dense": "{dense:.1f}",
    }
    columns |= {"HARP": "{harp:.1f}", "refitted": "{perplexity:.1f}"}
    columns |= {
        "times HARP's": "{value:.2f} [{low:.2f}, {high:.2f}]",
        "documents": "{documents:.0f}",
    }
    return stacked(
        lines(pd.concat([frame[top], frame[chosen]]).sort_values("model", kind="stable"), columns)
    )


def _usual(frame: pd.DataFrame) -> pd.Series:
    """Where as many layers go as in the other notebooks: rivals are compared there."""
    return frame["layers"] == frame["model"].map(
        frame[frame["kind"].isin(RIVALS)].groupby("model")["layers"].max()
    )


@figure("frontier")
def frontier(profile: dict) -> Figure:
    """Perplexity against the number of layers that have no attention."""
    frame = changes(profile).query("kind in @FRONTIER and corpus != @PASSKEY")
    axes = {"x": "value-only layers", "y": "times the dense perplexity (log scale)"}
    drawn = plots.lines(
        frame, "layers", "kind", FRONTIER, bars=True, panel=["model", "text"], wrap=2, **axes
    )
    note = "{model}95 % intervals over {documents} documents; the layers at the top, but for the dotted line"
    return plots.finish(drawn, told(profile), note, log="y", level=1)


@figure("frontier")
def frontier_rivals(profile: dict) -> Figure:
    """What else could stand in the place of attention, at as many layers, also for finding a key."""
    frame = changes(profile)
    frame = frame[_usual(frame)].sort_values(
        "kind", key=lambda kinds: kinds.map(list(SHOWN).index), kind="stable"
    )
    frame["title"] = [SHOWN[kind].label for kind in frame["kind"]]
    frame["panel"] = frame["model"].map(plots.short) + "\n" + frame["text"]
    layout = {"panel": "panel", "wrap": 3, "size": (4.6, 2.6), "share": (False, True)}
    drawn = plots.dots(
        frame, "title", "kind", SHOWN, x="times the dense perplexity (log scale)", **layout
    )
    for axis, _ in drawn.panels:
        axis.axvline(1, color=plots.DENSE, linewidth=1)
    keys = frame[frame["corpus"] == PASSKEY]
    said = {kind: span(part["perplexity"], ".1f") for kind, part in keys.groupby("kind")}
    title = (
        f"Finding a key: perplexity {span(keys['dense'], '.1f')} dense, {said[REFIT]} refitted, "
    )
    title += f"{said['windowed']} with a window, {said['boundary']} with keys and values from below"
    return plots.finish(drawn, title, "{model}95 % intervals over {documents} documents", log="x")


@figure("frontier")
def explained_variance(profile: dict) -> Figure:
    """How much of an attention's variance a linear map of its own token explains, by layer."""
    frame = data.tidy(profile["name"], "frontier", "explained")
    frame = frame.rename(columns={"method": "kind"})
    most = frame["layers"] == frame.groupby("model")["layers"].transform("max")
    frame = frame[(frame["kind"] == "dense") | (most & (frame["kind"] != CHOSEN))]
    looks = {"dense": Look("each layer alone, the others dense", plots.DENSE, "s")}
    looks |= {kind: FRONTIER[kind] for kind in (REFIT, TWO)}
    layout = {"wrap": 3, "share": (False, True), "x": "layer index", "y": "explained variance"}
    title = f"A token's own values explain {span(frame[frame['kind'] == 'dense']['value'])} of what attention puts out"
    drawn = plots.lines(frame, "layer", "kind", looks, **layout)
    return plots.finish(drawn, title, "{model}of the calibration text itself", ylim=(0, 1))


@table("frontier")
def frontier_costs(profile: dict) -> Table:
    """What refitting wins against HARP on each text, what it finds, and what its layers cost."""
    fitted = {REFIT: "one text", TWO: "two texts", CHOSEN: "two texts, layers explained best"}
    models = changes(profile, "harp").groupby("model", sort=False)
    frame = pd.concat([part[part["kind"] == kind] for _, part in models for kind in fitted])
    fits = data.tidy(profile["name"], "frontier", *COSTS)
    fits = fits.pivot_table("value", ["model", "method", "layers"], "quantity")
    frame = frame.join(fits, on=["model", "kind", "layers"])
    frame = frame.assign(fitted=frame["kind"].map(fitted))
    columns = {"model": "{model}", "layers": "{layers}", "fitted on": "{fitted}", "text": "{text}"}
    columns |= {
        "HARP": "{harp:.2f}",
        "refitted": "{perplexity:.2f}",
        "multiple": "{value:.3f} [{low:.3f}, {high:.3f}]",
    }
    columns |= {"documents": "{documents:.0f}"} | {name: f"{{{name}:.1%}}" for name in COSTS[:3]}
    return stacked(lines(frame, columns | {"fit, s": "{seconds:.0f}"})), frame
