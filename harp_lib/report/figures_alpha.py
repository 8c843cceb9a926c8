"""Figures of notebooks 03 and 06: the search for α, and what is left of HARP without it or in other layers."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.pyplot import get_cmap, setp
from matplotlib.ticker import FixedLocator, FuncFormatter

from harp_lib.measure.evaluation import BENCHMARKS, task_title
from harp_lib.measure.models import display_name
from harp_lib.measure.text import TITLES
from harp_lib.report import data, figure, plots
from harp_lib.report.comparisons import log_change, perplexity_interval
from harp_lib.report.figures_layers import note, rank_trend
from harp_lib.report.plots import DENSE, FIRST, HARP, LOOKS, PAPER, SECOND, Look, span
from harp_lib.report.scores import of_kind, scores

STRATEGIES = {  # of choosing layers, all at α = 1
    "dense": LOOKS["dense"],
    "top": LOOKS["alpha-1"]._replace(label="Top: HARP, α = 1"),
    "similarity": Look("Similarity", SECOND, "D"),
    "hessian": Look("Hessian", FIRST, "^"),
    "bottom": Look("Bottom", "#8c564b", "v"),
}
WAYS = {  # to share out what the search gains
    "step": Look("after the layers above it", HARP),
    "alone": Look("alone", FIRST, "s"),
    "missed": Look("after all others", SECOND, "D"),
}
KINDS = ("generation", "discriminative")


@figure("alpha_search")
def alpha_curves(profile: dict) -> Figure:
    """Perplexity against α, a line for each searched layer: those above have their best α, those below are dense."""
    frame = data.tidy(profile["name"], "alpha_search", "perplexities")
    frame["text"] = frame["corpus"].map(TITLES)
    frame["depth"] = frame.groupby("model")["layer"].transform("max") - frame["layer"]
    depths = sorted(frame["depth"].unique())
    shades = zip(depths, get_cmap("viridis")(np.linspace(0.05, 0.9, len(depths))), strict=True)
    looks = {depth: Look(f"{depth:.0f} below" if depth else "top layer", shade, ".") for depth, shade in shades}
    drawn, grid = plots.lines(frame, "value", "alpha", "depth", looks, panel=["model", "text"])
    best = frame.loc[frame.groupby(["model", "text", "depth"], sort=False)["value"].idxmin()]
    for axis, part in grid:
        mine = best.loc[best.index.intersection(part.index)]
        axis.scatter(mine["alpha"], mine["value"], s=60, facecolor="none", edgecolor="black", zorder=3, label="best α")
    plots.log_axis(grid[0][0], "y")
    inner = ((best["alpha"] > 0) & (best["alpha"] < 1)).sum()
    step = best.sort_values("depth").groupby(["model", "text"])["value"].pct_change()
    worst = best.loc[step.idxmax()] if step.notna().any() else best.iloc[0]
    title = (
        f"The best α lies between 0 and 1 in {inner} of {len(best)} searches; layer {worst['layer']:.0f} costs most "
        f"({100 * step.max():+.0f} % perplexity)"
    )
    return plots.finish(
        drawn, grid, title, plots.about(frame), x="α of the layer", y="perplexity per token (log scale)"
    )


@figure("alpha_search")
def alpha_by_layer(profile: dict) -> Figure:
    """Searched α against layer index: the paper's figure, from its numbers, and ours."""
    printed = data.paper("alpha_search").rename(columns={"task": "corpus"}).assign(source="paper", kind="paper")
    ours = data.tidy(profile["name"], "alpha_search", "alphas").assign(source="ours", kind="harp")
    frame = pd.concat([printed, ours.assign(model=ours["model"].map(display_name))], ignore_index=True)
    frame["panel"] = frame["model"] + "\n" + frame["source"] + ": " + frame["corpus"].map(TITLES)
    layout = {"panel": "panel", "share": (False, True), "size": (3, 2.2)}
    drawn, grid = plots.bars(frame, "value", "layer", "kind", LOOKS, **layout)
    for axis, part in grid:
        axis.set_ylim(0, 1.1)
        for layer, alpha in zip(part["layer"], part["value"], strict=True):
            axis.annotate(f"{alpha:g}", (layer, alpha), (0, 2), textcoords="offset points", ha="center", size=7.5)
    said, found = (
        span(rank_trend(part.assign(model=part["model"] + part["corpus"])), "+.2f") for part in (printed, ours)
    )
    title = f"Does α rise with the layer? Rank correlation {said} in the paper (grey), {found} here (blue)"
    return plots.finish(drawn, grid, title, x="layer index", y="searched α", legend=False)


@figure("alpha_search")
def alpha_held_out(profile: dict) -> Figure:
    """Perplexity of the dense model and of each choice of α on held-out text; the paper's two by two beside it."""
    found = data.tidy(profile["name"], "alpha_search", "nll", "tokens").query("split == 'validation'")
    rows = [
        (*key, *perplexity_interval(*(part[part["quantity"] == name]["value"] for name in ("nll", "tokens"))))
        for key, part in found.groupby(["model", "corpus", "method"], sort=False)
    ]
    frame = pd.DataFrame(rows, columns=["model", "corpus", "plan", "value", "low", "high", "documents"])
    printed = data.paper("alpha_robustness").rename(columns={"task": "corpus", "method": "plan"})
    printed = printed.assign(model=printed["model"] + " (paper)", kind="paper")
    frame = pd.concat([frame.assign(kind=frame["plan"]), printed])
    searched = frame["plan"].str.startswith("searched-on-")
    frame["kind"] = frame["kind"].mask(searched & (frame["kind"] != "paper"), "harp")
    frame["plan"] = np.select(
        [frame["plan"] == "searched-on-" + frame["corpus"], searched], ["own", "other"], frame["plan"]
    )
    names = {"dense": "dense", "own": "α searched on this text", "other": "α searched on the other"}
    names |= {"alpha-1": "α = 1", "alpha-0": "α = 0"}
    frame = frame.assign(
        name=frame["plan"].map(names), text=frame["corpus"].map(TITLES), printed=frame["kind"] == "paper"
    )
    frame = frame.sort_values(
        ["printed", "plan"], key=lambda column: column.map(list(names).index) if column.name == "plan" else column
    )
    layout = {"panel": ["model", "text"], "size": (3.4, 2.6), "dodge": 0}
    drawn, grid = plots.dots(frame, "value", "name", "kind", LOOKS, **layout)
    plots.log_axis(grid[0][0], "x")
    ours = frame[~frame["printed"]]
    mean = {plan: span(ours[ours["plan"] == plan]["value"], ".0f") for plan in names}
    title = (
        f"On held-out text perplexity is {mean['own']} with α searched on the same corpus, {mean['other']} on the "
        f"other, {mean['alpha-1']} with α = 1, {mean['alpha-0']} with α = 0, {mean['dense']} dense"
    )
    about = note(ours, "95 % intervals over {} documents; the paper's perplexities are per word")
    return plots.finish(drawn, grid, title, about, x="perplexity per token (log scale)", legend=False)


@figure("ablations")
def ablation_layers(profile: dict) -> Figure:
    """Which layers each strategy picks, here and in the paper."""
    ours = data.tidy(profile["name"], "ablations", "layers", "inputs.total")
    total = ours[ours["quantity"] == "inputs.total"].groupby("model")["value"].max()
    ours = ours[ours["quantity"] == "layers"].rename(columns={"layer": "rank", "value": "layer"})
    printed = data.paper("selected_layers")
    model, count = printed["model"].iloc[0], len(printed[printed["method"] == "hessian"])
    top = data.paper("alpha_search").query("model == @model and task == 'wikitext'")["layer"]
    ends = {"top": sorted(top), "bottom": range(count)}
    ends = [(model, method, layer) for method, layers in ends.items() for layer in layers]
    printed = pd.concat([printed, pd.DataFrame(ends, columns=["model", "method", "layer"])])
    frame = pd.concat([ours.assign(kind="harp"), printed.assign(kind="paper", model=f"{model} (paper)")])
    order = {name: look.label.partition(":")[0] for name, look in STRATEGIES.items() if name != "dense"}
    frame = frame.assign(name=frame["method"].map(order)).set_index("method").loc[list(order)].reset_index()
    frame = frame.sort_values("kind", kind="stable")
    looks = {"harp": Look("picked", HARP, "s"), "paper": Look("picked in the paper", PAPER, "s")}
    layout = {"share": (False, True), "size": (5, 2.0), "dodge": 0, "wrap": 2}
    drawn, grid = plots.dots(frame, "layer", "name", "kind", looks, **layout)
    for axis, part in grid:
        axis.set_xlim(-1, total.get(part["model"].iloc[0], max(top) + 1))
    both = ours.groupby(["model", "method"])["layer"].agg(set)
    shared = pd.Series({name: len(both[name, "similarity"] & both[name, "top"]) for name in total.index})
    size = pd.Series({name: len(both[name, "top"]) for name in total.index})
    title = (
        f"Similarity picks {span(shared, '.0f')} of the {span(size, '.0f')} layers that HARP prunes; in the paper "
        f"{len(set(top) & set(printed[printed['method'] == 'similarity']['layer']))} of {len(top)}"
    )
    return plots.finish(drawn, grid, title, x="layer index (0 is the bottom)", legend=False)


@figure("ablations")
def ablation_scores(profile: dict) -> Figure:
    """Score of each strategy on each discriminative task and on their average, on one scale."""
    frame = scores(profile, ("ablations", "main_tables"), of_kind("discriminative"), STRATEGIES)
    frame = frame.dropna(subset="value").assign(low=lambda rows: rows["value"] - rows["error"])
    frame["high"] = 2 * frame["value"] - frame["low"]
    titles = [
        row.task if row.task == "average" else task_title(row.task, profile["datasets"]) for row in frame.itertuples()
    ]
    frame["name"] = [f"{title}\n{asked:.0f} questions" for title, asked in zip(titles, frame["questions"], strict=True)]
    drawn, grid = plots.dots(frame, "value", "name", "method", STRATEGIES, size=(4.8, 4.8), dodge=0.15)
    chance = {row.name: 100 / BENCHMARKS[row.task].choices for row in frame.itertuples() if row.task in BENCHMARKS}
    chance |= dict.fromkeys(frame[frame["task"] == "average"]["name"], np.mean(list(chance.values())))
    for axis, _ in grid:
        for place, name in enumerate(dict.fromkeys(frame["name"])):
            axis.vlines(chance[name], place - 0.4, place + 0.4, color="black", linestyle=":", label="guessing")
    mean = frame[frame["task"] == "average"].set_index(["method", "model"])["value"]
    shown = [f"{STRATEGIES[name].label.partition(':')[0]} {span(mean[name], '.1f')}" for name in STRATEGIES]
    title = f"Average accuracy (%): {', '.join(shown)}"
    return plots.finish(drawn, grid, title, plots.about(frame, "scores ± standard error"), x="accuracy (%)")


@figure("ablations")
def ablation_single_layers(profile: dict) -> Figure:
    """Rise of log perplexity when one layer is pruned and all others are dense, by its index."""
    found = data.tidy(profile["name"], "ablations", "dense", "tokens", "1", "0", "inputs.num_layers")
    found = found[found["method"] == "single-layer"]
    whole = found.pivot_table(index=["model", "document"], columns="quantity", values="value")
    looks = {"1": Look("queries and keys removed (α = 1)", *LOOKS["alpha-1"][1:])}
    looks |= {"0": Look("the whole attention removed (α = 0)", *LOOKS["alpha-0"][1:])}
    rows = []
    for (model, alpha, layer), part in found[found["layer"].notna()].groupby(
        ["model", "quantity", "layer"], sort=False
    ):
        dense = whole.loc[model].loc[part["document"]]
        rows.append((model, alpha, int(layer), *log_change(dense["dense"], part["value"], dense["tokens"])))
    frame = pd.DataFrame(rows, columns=["model", "alpha", "layer", "value", "low", "high", "documents"])
    layout = {"upright": True, "size": (5.6, 3.6), "dodge": 0.28, "wrap": 2, "share": (False, True)}
    drawn, grid = plots.dots(frame, "value", "layer", "alpha", looks, **layout)
    for axis, part in grid:
        last, pruned = part["layer"].max(), whole.loc[part["model"].iloc[0], "inputs.num_layers"].iloc[0]
        axis.axvspan(last - pruned + 0.5, last + 0.5, color="black", alpha=0.07, lw=0, label="layers that HARP prunes")
        axis.set_yscale("symlog", linthresh=0.1, linscale=0.6)
        axis.yaxis.set_major_locator(FixedLocator([-0.1, -0.03, 0, 0.03, 0.1, 0.3, 1, 3, 10]))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_ylim(min(0, frame["low"].min()) - 0.02, 2 * frame["value"].max())
    trend = {alpha: span(rank_trend(frame[frame["alpha"] == alpha]), "+.2f") for alpha in looks}
    title = (
        f"Does a higher layer cost less? Rank correlation of cost and layer {trend['1']} without queries and keys, "
        f"{trend['0']} without attention"
    )
    axes = {"x": "layer index (0 is the bottom)", "y": "rise of log perplexity\n(nats per token; linear below 0.1)"}
    return plots.finish(drawn, grid, title, note(frame, "95 % intervals over {} held-out documents"), **axes, level=0)


@figure("ablations")
def teaser_right(profile: dict) -> Figure:
    """The paper's Figure 1, right: α = 1 against searched α on all benchmarks, the paper's beneath ours."""
    methods, parts = {"dense": "dense", "top": "alpha-1", "harp": "harp"}, []
    for kind in KINDS:
        ours = scores(profile, ("ablations", "main_tables"), of_kind(kind), methods).assign(look="")
        paper = pd.concat([data.paper("alpha_ablation"), data.paper(kind)])
        paper = paper.query("model == 'LLaMA3.1-8B' and quantity == 'score'").drop_duplicates(["method", "task"])
        paper = paper.replace({"task": {f"average {kind}": "average"}}).assign(
            look="paper ", model="LLaMA3.1-8B (paper)"
        )
        found = pd.concat([ours, paper]).dropna(subset="value").assign(kind=kind)
        parts.append(found[found["task"].isin([*of_kind(kind), "average"]) & found["method"].isin(methods)])
    frame = pd.concat(parts).sort_values("look", kind="stable").assign(low=lambda rows: rows["value"] - rows["error"])
    frame["high"], source = 2 * frame["value"] - frame["low"], {"": profile["datasets"], "paper ": "hub"}
    frame["title"] = [
        f"average, {row.kind}" if row.task == "average" else task_title(row.task, source[row.look])
        for row in frame.itertuples()
    ]
    frame["look"] += frame["method"].map(methods)
    looks = {"alpha-1": LOOKS["alpha-1"], "harp": LOOKS["harp"], "paper harp": Look("searched α (paper)", PAPER)}
    looks["paper alpha-1"] = Look("α = 1 (paper)", PAPER, hollow=True)
    looks = {name: looks[name] for name in ("alpha-1", "harp", "paper alpha-1", "paper harp")}
    own = frame[frame["method"] != "dense"]
    drawn, grid = plots.bars(own, "value", "title", "look", looks, size=(9.5, 2.4), wrap=1, share=(False, False))
    for axis, part in grid:
        setp(axis.get_xticklabels(), rotation=30, ha="right", rotation_mode="anchor", size="small")
        dense = frame[(frame["method"] == "dense") & (frame["model"] == part["model"].iloc[0])].set_index("title")
        for place, title in enumerate(dict.fromkeys(part["title"])):
            score = dense["value"].get(title, np.nan)
            axis.hlines(score, place - 0.4, place + 0.4, color=DENSE, lw=2, label="dense")
    mean = own[(own["task"] == "average") & own["look"].isin(["alpha-1", "harp"])]
    mean = mean.set_index(["kind", "method", "model"])["value"]
    gains = [
        f"{span(mean[kind]['harp'] - mean[kind]['top'], '+.1f')} points to the average of {kind}" for kind in KINDS
    ]
    title = f"Searching α adds {' and '.join(gains)} tasks"
    about = "scores ± standard error; beneath ours, the paper's Figure 1, right"
    return plots.finish(drawn, grid, title, about, y="score (%)")


@figure("ablations")
def ablation_gain(profile: dict) -> Figure:
    """What the searched α of each layer gains in log perplexity, in three ways."""
    found = data.tidy(profile["name"], "ablations", "nll", "tokens", "inputs.alphas")
    found = found[found["method"] == "gain"]
    rows = []
    for model, part in found.groupby("model", sort=False):
        nll = part[part["quantity"] == "nll"].pivot_table(index="document", columns="plan", values="value")
        tokens = part[part["quantity"] == "tokens"].set_index("document")["value"].loc[nll.index]
        alphas = part[part["quantity"] == "inputs.alphas"].groupby("layer")["value"].first().sort_index(ascending=False)
        last = f"top-{len(alphas)}"
        for depth, (layer, alpha) in enumerate(alphas.items()):
            plans = {"step": (f"top-{depth + 1}", f"top-{depth}"), "alone": (f"only-{layer:.0f}", "top-0")}
            plans["missed"] = (last, f"without-{layer:.0f}")
            for way, (after, before) in plans.items():
                gain = log_change(nll[after], nll[before], tokens)
                rows.append((model, f"layer {layer:.0f}, α = {alpha:g}", way, *gain))
        rows.append((model, "all", "step", *log_change(nll[last], nll["top-0"], tokens)))
    frame = pd.DataFrame(rows, columns=["model", "name", "way", "value", "low", "high", "documents"])
    drawn, grid = plots.dots(frame, "value", "name", "way", WAYS, size=(4.8, 3.6), share=(True, False), dodge=0.2)
    for axis, _ in grid:
        axis.axvline(0, color="black", linewidth=0.8)
    steps = frame[(frame["way"] == "step") & (frame["name"] != "all")]
    title = (
        f"The search gains {span(frame[frame['name'] == 'all']['value'])} nats per token; "
        f"{(steps['low'] > 0).sum()} of {len(steps)} layers add to it, {(steps['high'] < 0).sum()} take from it"
    )
    about = note(frame, "95 % intervals over {} held-out documents")
    return plots.finish(drawn, grid, title, about, x="gain in log perplexity (nats per token)")
