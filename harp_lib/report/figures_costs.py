"""Figures of notebooks 04 and 08: what the methods take, and what that costs and saves."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from harp_lib.measure.models import display_name
from harp_lib.measure.text import TITLES as TEXTS
from harp_lib.methods import BASELINES, TITLES
from harp_lib.report import comparisons, data, figure, plots
from harp_lib.report.plots import FIRST, LOOKS, PAPER, SECOND, Look, about
from harp_lib.report.tables import MISSING, VARIANTS, efficiency, paper_times, perplexities, ranges, told

HARP, FLAPPED = "harp", "harp+flap"
LOOK = {"harp-tail": ("#004d40", "*"), "harp-folded": ("#7cb518", "^"), "thinned": ("#920000", "D")}
TIMED = {"harp": LOOKS[HARP]} | {name: Look(VARIANTS[name], *look) for name, look in LOOK.items()}
KEPT, VALUE_ONLY = "#ececec", "#c9c9ff"


@figure("baselines")
def baseline_ranges(profile: dict) -> Figure:
    """Perplexity against the first layer of the range, a panel for each method, a line for each length."""
    frame = ranges(profile)
    frame["title"] = frame["method"].map(TITLES)
    kinds = zip(sorted(frame["layers"].unique()), "os^DvPX", ("-", "--", ":", "-.", "-", "--", ":"), strict=False)
    looks = {count: Look(f"{count} layers", "#4d4d4d", mark, line, hollow=True) for count, mark, line in kinds}
    drawn, grid = plots.lines(frame, "value", "start", "layers", looks, panel=["model", "title"], size=(3.2, 3.2))
    for axis, part in grid:
        best = part[part["tuned"]]
        ring = {"color": "none", "markersize": 14, "markeredgewidth": 2}
        axis.plot(best["start"], best["value"], "o", markeredgecolor=LOOKS[best["method"].iloc[0]].colour, **ring)
        plots.log_axis(axis, "y")
    alike, others = frame["alike"].sum() - frame["tuned"].sum(), (~frame["tuned"]).sum()
    title = f"{alike} of {others} other ranges cannot be told from the tuned one (ring) by their perplexity"
    note = about(frame, f"the same number of groups from each range, {frame['documents'].max()} documents")
    axes = {"x": "first layer of the range", "y": "perplexity per token (log scale)"}
    return plots.finish(drawn, grid, title, note, **axes)


def groups(profile: dict) -> pd.DataFrame:
    """What becomes of every key/value group: model, method, layer, group, state (0 kept, 1 gone, 2 V and O kept)."""
    rows = []
    for (model, method, task), cell in data.cells(profile["name"], "baselines").items():
        plan = cell["result"].get("plan") if task == "plan" else None
        lost = {part["layer"]: part for part in plan["layers"]} if plan else {}
        for layer in range(plan["num_layers"] if plan else 0):
            alpha, gone = (lost.get(layer, {}).get(name) for name in ("alpha", "removed_groups"))
            for group in range(cell["result"].get("groups_per_layer", 1 + max(gone or [0]))):
                state = 1 if alpha == 0 or group in (gone or ()) else 2 * (alpha is not None)
                rows.append((model, method, layer, group, state))
    return pd.DataFrame(rows, columns=["model", "method", "layer", "group", "state"])


@figure("baselines")
def baseline_groups(profile: dict) -> Figure:
    """What goes where; FLAP as the paper prints it, and as its repository has it."""
    frame = groups(profile)
    names = {m: TITLES[m] for m in BASELINES} | {"flap-squared": "FLAP, upstream", HARP: "HARP", FLAPPED: "HARP+FLAP"}
    frame = frame.sort_values("method", key=lambda part: part.map(list(names).index), kind="stable")
    frame = frame.sort_values("model", kind="stable").assign(title=lambda rows: rows["method"].map(names))
    drawn, grid = plots.panels(frame, ["model", "title"], size=(1.7, 4.2), wrap=frame["title"].nunique())
    for axis, part in grid:
        wide, method = part.pivot_table("state", "layer", "group"), part["method"].iloc[0].removesuffix("-squared")
        look = {"cmap": ListedColormap([KEPT, LOOKS[method].colour, VALUE_ONLY]), "vmin": 0, "vmax": 2}
        axis.pcolormesh(wide.columns, wide.index, wide, shading="nearest", edgecolor="white", linewidth=0.6, **look)
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    gone = frame[frame["state"] > 0]
    upper = (gone["layer"] > frame["layer"].max() / 2).groupby(gone["title"]).mean()
    said = ", ".join(f"{name} {share:.0%}" for name, share in upper.items() if name != "HARP+FLAP")
    colours = {"removed, in the method's colour": "#404040", "Q and K removed, V and O kept": VALUE_ONLY, "kept": KEPT}
    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    title, axes = (
        f"How much of what goes is from the upper half of the layers: {said}",
        {"x": "group", "y": "layer (0: bottom)"},
    )
    return plots.finish(drawn, grid, title, about(frame), **axes, handles=handles)


@figure("baselines")
def baseline_change(profile: dict) -> Figure:
    """How many times the held-out perplexity of HARP and HARP+FLAP each baseline has, with other samples as well."""
    frame, parts = perplexities(profile, "baselines", HARP, FLAPPED), []
    stored = data.cells(profile["name"], "baselines")
    frame = frame[frame["method"].isin(BASELINES) & (frame["split"] == "validation")]
    frame = frame.sort_values("method", key=lambda part: part.map(list(BASELINES).index), kind="stable")
    for reference, equal in ((HARP, "heads"), (FLAPPED, "parameters")):
        ratio = 1 + frame[[reference, f"{reference} low", f"{reference} high"]].to_numpy()
        part = pd.DataFrame(ratio, columns=["value", "low", "high"]).assign(
            reference=reference, n=frame["documents"].max()
        )
        part["panel"] = [f"as many {equal} as {TITLES[reference]}\n{TEXTS[corpus]}" for corpus in frame["corpus"]]
        parts.append(part.assign(model=frame["model"].to_list(), method=frame["method"].to_list()))
    for (model, method, task), cell in stored.items():
        if method in BASELINES and "-seed-" in task and "nll" in cell["result"]:
            own, other = cell["result"], stored[model, FLAPPED, task]["result"]
            ratio = 1 + np.array(comparisons.change(other["nll"], own["nll"], own["tokens"])[:3])
            row = dict(zip(("value", "low", "high"), ratio, strict=True)) | {"reference": FLAPPED, "n": len(own["nll"])}
            row["panel"] = f"as many parameters as HARP+FLAP\ncalibration sample {task.rpartition('-')[2]}"
            parts.append(pd.DataFrame([row | {"model": model, "method": method}]))
    frame = pd.concat(parts, ignore_index=True)
    frame["title"] = frame["method"].map(TITLES)
    layout = {"panel": ["model", "panel"], "dodge": 0, "size": (4.4, 1.8), "wrap": 2}
    drawn, grid = plots.dots(frame, "value", "title", "method", **layout)
    for axis, part in grid:
        axis.axvline(1, color=LOOKS[part["reference"].iloc[0]].colour, linewidth=1.5)
        plots.log_axis(axis, "x")
    held = frame[frame["reference"] == FLAPPED]
    reach = held.groupby("title", sort=False).agg({"low": "min", "high": "max"})
    sides = {"beats": reach["low"] > 1, "loses to": reach["high"] < 1}
    said = " and ".join(f"{word} {', '.join(side[side].index)}" for word, side in sides.items() if side.any())
    title = (
        f"At equal parameters the baselines have {plots.span(held['value'])} times HARP+FLAP's held-out perplexity: "
    )
    title += f"it {said}" if said else "none can be told from it"
    documents = f"{plots.span(frame['n'], '.0f')} documents"
    note = about(frame, f"{documents}, 95 % intervals; right of the line the baseline is worse")
    return plots.finish(drawn, grid, title, note, x="perplexity, as a multiple (log scale)", legend=False)


def _ratios(profile: dict, wanted: dict[str, tuple[str, str]]) -> tuple[pd.DataFrame, Figure, plots.Panels]:
    """Columns of the efficiency frames against length, a panel for each; what they are a multiple of is a line at 1."""
    kinds, parts = {kind: efficiency(profile, kind) for kind, _ in wanted.values()}, []
    for title, (kind, column) in wanted.items():
        part = kinds[kind].query("variant in @TIMED").assign(what=title, of=column.split()[-1])
        for name in ("", " low", " high"):
            part[name.strip() or "value"] = part.get(column + name, np.nan)
        parts.append(part.dropna(subset="value"))
    frame, layout = pd.concat(parts, ignore_index=True), {"panel": ["model", "what"], "size": (4.4, 3.3), "wrap": 2}
    drawn, grid = plots.lines(frame, "value", "length", "variant", TIMED, bars=True, **layout)
    for axis, part in grid:
        colour = TIMED["thinned"].colour if part["of"].iloc[0] == "thinned" else LOOKS["dense"].colour
        axis.axhline(1, color=colour, linewidth=1, zorder=0)
        _length_axis(axis)
    return frame, drawn, grid


def _length_axis(axis: Axes) -> None:
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(LogLocator(base=2, numticks=7))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.tick_params(axis="x", labelsize="small")


def _last(frame: pd.DataFrame, what: str, variant: str = HARP) -> str:
    """A variant's value in a panel at the longest text that was timed repeatedly."""
    mine = frame[(frame["variant"] == variant) & (frame["what"] == what) & frame["low"].notna()]
    return told(*mine.sort_values("length").iloc[-1][["value", "low", "high"]], ".3f") if len(mine) else MISSING


@figure("efficiency")
def time_saved(profile: dict) -> Figure:
    """The time of a prefill as a multiple of dense, beside the operations left, and of as many groups thinned out."""
    dense, thinned = "times the dense model's", "times the evenly thinned model's"
    frame, drawn, grid = _ratios(profile, {dense: ("prefill", "of dense"), thinned: ("prefill", "of thinned")})
    paper = paper_times().dropna(subset="of dense")
    for axis, part in grid:
        if part["what"].iloc[0] == dense:
            for variant, line in part.groupby("variant"):
                edges = (line["flops full of dense"], line["flops causal of dense"])
                axis.fill_between(line["length"], *edges, color=TIMED[variant].colour, alpha=0.15, linewidth=0)
            axis.plot(
                paper["length"], paper["of dense"], "X", color=PAPER, markersize=9, label="HARP in the paper (H100)"
            )
    length = frame.loc[frame["repetitions"] > 1, "length"].max()
    tail = (
        f" ({_last(frame, dense, 'harp-tail')} if the prompt skips the top)"
        if "harp-tail" in set(frame["variant"])
        else ""
    )
    title = f"HARP reads {length:,.0f} tokens in {_last(frame, dense)} of the dense model's time{tail}, and in "
    title += f"{_last(frame, thinned)} of the time of as many groups thinned out evenly"
    note = about(
        frame, "95 % intervals over repetitions; bands: operations left, all query-key pairs to the visible ones"
    )
    return plots.finish(drawn, grid, title, note, x="tokens (log scale)", y="time, as a multiple")


@figure("efficiency")
def memory_and_decode(profile: dict) -> Figure:
    """What is left of the time of a new token, of the KV cache and of the peak of a prefill."""
    token, cache = "time of a new token, times dense", "KV cache, times dense"
    what = {token: ("decode", "of dense"), "the same, times thinned out evenly": ("decode", "of thinned")}
    what |= {
        cache: ("prefill", "cache_bytes of dense"),
        "peak of a prefill, times dense": ("prefill", "peak_bytes of dense"),
    }
    frame, drawn, grid = _ratios(profile, what)
    left = frame[(frame["what"] == cache) & (frame["variant"] == HARP)]["value"].mean()
    title = f"With {left:.0%} of the cache HARP writes a token in {_last(frame, token)} of the dense model's time"
    note = about(frame, "marks upon each other are equal; 95 % intervals over repetitions of the times")
    return plots.finish(drawn, grid, title, note, x="tokens (log scale)", y="as a multiple")


@figure("efficiency")
def attention_share(profile: dict) -> Figure:
    """The share of attention in attention and FFN together, dense: of the operations, counted, and of the time."""
    rows, points, source = [], [], data.Source(profile["name"])
    for (model, _, task), cell in source.cells("efficiency").items():
        result = cell["result"]
        for pairs, counts in result["flops"].items() if task == "counted" else ():
            shares = [flops["attention"] / (flops["attention"] + flops["ffn"]) for flops in counts]
            rows += [(model, pairs, *row) for row in zip(result["lengths"], shares, strict=True)]
        if task.startswith("split-") and "failed" not in result:
            shares = [part["attention"] / (part["attention"] + part["ffn"]) for part in result["seconds"]["dense"]]
            points.append((model, cell["inputs"]["tokens"], *comparisons.mean_interval(shares)[:3]))
    looks = {
        "full": Look("operations, all pairs", FIRST, ""),
        "causal": Look("operations, visible pairs", SECOND, "", "--"),
    }
    frame = pd.DataFrame(rows, columns=["model", "pairs", "length", "value"])
    drawn, grid = plots.lines(frame, "value", "length", "pairs", looks, size=(7, 3.6))
    timed = pd.DataFrame(points, columns=["model", "length", "value", "low", "high"]).sort_values("length")
    for axis, part in grid:
        mine = timed[timed["model"] == part["model"].iloc[0]]
        reach = [mine["value"] - mine["low"], mine["high"] - mine["value"]]
        axis.errorbar(mine["length"], mine["value"], reach, fmt="o", color="black", capsize=2, label="time, measured")
        crossing = source.result("efficiency", part["model"].iloc[0], "all", "counted")["intermediate_size"]
        axis.axvline(crossing, color=PAPER, linestyle=":", label="N = d_ff: the paper's crossing")
        axis.axhline(0.5, color="black", linewidth=0.6)
        _length_axis(axis)
    said = ", ".join(f"{row.value:.1%} at {row.length:,} tokens" for row in timed.itertuples())
    title = f"Of the time of attention and FFN together, attention takes {said or 'an unknown share'}"
    note = about(frame, "dense model; above the line attention takes more than the FFN; 95 % intervals")
    return plots.finish(drawn, grid, title, note, x="tokens of the prefill (log scale)", y="share of attention")


def time_found(profile: dict) -> list[str]:
    """What was found of HARP's time at the longest text that was timed repeatedly, for and against it: sentences."""
    read, said = efficiency(profile, "prefill"), []
    if read.empty:
        return ["Nothing was timed."]
    read = read.query("repetitions > 1").set_index(["model", "length", "variant"])
    for name, length in read.reset_index().groupby("model")["length"].max().items():
        at = read.loc[name, length].to_dict("index")
        ends_ = {way: [100 * (1 - row[f"of dense{end}"]) for end in ("", " high", " low")] for way, row in at.items()}
        said.append(
            f"{display_name(name)}, {length:,} tokens: HARP saves {told(*ends_['harp'], '.1f')} % of dense's time."
        )
        if "thinned" in at:
            value, low, high = (at["harp"][f"of thinned{end}"] for end in ("", " low", " high"))
            answer = "more" if low > 1 else "less" if high < 1 else "which cannot be told from as much"
            said[-1] += " Against it: as many groups can be thinned out evenly over all layers instead. HARP takes "
            said[-1] += f"{told(value, low, high, '.3f')} times the time of that model, {answer}."
        if "harp-tail" in at:
            said[-1] += (
                " If the prompt skips the value-only layers at the top, which the thinned model cannot do, HARP "
            )
            said[-1] += f"saves {told(*ends_['harp-tail'], '.1f')} %."
    return said
