"""Figures of notebooks 04 and 08: what the methods take, and what that costs and saves."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harp_lib.measure.models import display_name
from harp_lib.measure.text import TITLES as TEXTS
from harp_lib.methods import BASELINES, TITLES
from harp_lib.report import comparisons, data, figure, plots
from harp_lib.report.plots import FIRST, LOOKS, PAPER, SECOND, Look, about
from harp_lib.report.tables import ENDS, MISSING, VARIANTS, efficiency, paper_times, perplexities, ranges, told

HARP, FLAPPED = "harp", "harp+flap"
LOOK = {"harp-tail": ("#004d40", "*"), "harp-folded": ("#7cb518", "^"), "thinned": ("#920000", "D")}
TIMED = {"harp": LOOKS[HARP]} | {name: Look(VARIANTS[name], *look) for name, look in LOOK.items()}
STATES = {"kept": "#ececec", "removed": "#404040", "Q and K removed, V and O kept": "#c9c9ff"}


@figure("baselines")
def baseline_ranges(profile: dict) -> Figure:
    """Perplexity against the first layer of the range, a panel for each method, a line for each length."""
    frame = ranges(profile)
    frame["title"] = frame["method"].map(TITLES)
    kinds = zip(sorted(frame["layers"].unique()), "os^DvPX", ("-", "--", ":", "-.", "-", "--", ":"), strict=False)
    looks = {count: Look(f"{count} layers", "#4d4d4d", mark, line, hollow=True) for count, mark, line in kinds}
    layout = {"panel": ["model", "title"], "size": (3.2, 3.2)}
    drawn, grid = plots.lines(frame.drop(columns="error"), "value", "start", "layers", looks, **layout)
    for axis, part in grid:
        best = part[part["tuned"]]
        axis.scatter(best["start"], best["value"], 200, "none", edgecolors=LOOKS[best["method"].iloc[0]].colour, lw=2)
        plots.log_axis(axis, "y")
    alike, others = frame["alike"].sum() - frame["tuned"].sum(), (~frame["tuned"]).sum()
    title = f"{alike} of {others} other ranges cannot be told from the tuned one (ring) by their perplexity"
    note = about(frame, "the same number of groups from each range, {} documents")
    axes = {"x": "first layer of the range", "y": "perplexity per token (log scale)"}
    return plots.finish(drawn, grid, title, note, **axes)


@figure("baselines")
def baseline_groups(profile: dict) -> Figure:
    """What becomes of every key/value group; of FLAP as the paper prints it, and as its repository has it."""
    names = {m: TITLES[m] for m in BASELINES} | {"flap-squared": "FLAP, upstream", HARP: "HARP", FLAPPED: "HARP+FLAP"}
    rows, stored = [], data.cells(profile["name"], "baselines")
    for model, method in dict.fromkeys((model, method) for model, *_ in stored for method in names):
        result = stored.get((model, method, "plan"), {}).get("result", {})
        lost = {part["layer"]: part for part in result["plan"]["layers"]} if "plan" in result else {}
        for layer in range(result["plan"]["num_layers"] if lost else 0):
            alpha, gone = (lost.get(layer, {}).get(name) for name in ("alpha", "removed_groups"))
            for group in range(result["groups_per_layer"]):
                state = 1 if alpha == 0 or group in (gone or ()) else 2 * (alpha is not None)
                rows.append((model, method, names[method], layer, group, state))
    frame = pd.DataFrame(rows, columns=["model", "method", "title", "layer", "group", "state"])
    layout = {"panel": ["model", "title"], "size": (1.7, 4.2), "wrap": frame["title"].nunique()}
    colours = ListedColormap(list(STATES.values()))
    drawn, grid = plots.tiles(frame, "state", "group", "layer", Normalize(0, 2), cmap=colours, **layout)
    gone = frame[frame["state"] > 0]
    upper = (gone["layer"] > frame["layer"].max() / 2).groupby(gone["title"]).mean().drop("HARP+FLAP")
    title = "From the upper half of the layers is, of what goes: "
    title += ", ".join(f"{name} {share:.0%}" for name, share in upper.items())
    handles = [Patch(color=colour, label=name) for name, colour in STATES.items()]
    return plots.finish(drawn, grid, title, about(frame, ""), x="group", y="layer (0: bottom)", handles=handles)


@figure("baselines")
def baseline_change(profile: dict) -> Figure:
    """How many times the held-out perplexity of HARP and HARP+FLAP each baseline has, with other samples as well."""
    found, parts = perplexities(profile, "baselines", HARP, FLAPPED), []
    found = found[found["method"].isin(BASELINES) & ~found["split"].isin(["test", "train"])]
    for reference, equal in ((HARP, "heads"), (FLAPPED, "parameters")):
        part = found[["model", "method", "documents"]].assign(reference=reference)
        part[list(ENDS)] = 1 + found[[reference + end for end in ENDS.values()]].to_numpy()
        text = found["corpus"].map(TEXTS).where(found["split"] == "validation", "calibration sample " + found["split"])
        parts.append(part.assign(panel=f"as many {equal} as {TITLES[reference]}\n" + text))
    frame = pd.concat(parts, ignore_index=True).dropna(subset="value")
    frame["title"] = frame["method"].map(TITLES)
    frame = frame.sort_values("method", key=lambda part: part.map(list(BASELINES).index), kind="stable")
    layout = {"panel": ["model", "panel"], "dodge": 0, "size": (4.4, 1.8), "wrap": 2}
    drawn, grid = plots.dots(frame, "value", "title", "method", **layout)
    for axis, part in grid:
        axis.axvline(1, color=LOOKS[part["reference"].iloc[0]].colour, linewidth=1.5)
        plots.log_axis(axis, "x")
    held = plots.span(frame[frame["reference"] == FLAPPED]["value"])
    title = f"At equal parameters the baselines have {held} times HARP+FLAP's held-out perplexity"
    note = about(frame, "{} documents, 95 % intervals; right of the line the baseline is worse")
    return plots.finish(drawn, grid, title, note, x="perplexity, as a multiple (log scale)", legend=False)


def _ratios(profile: dict, wanted: dict[str, tuple[str, str]]) -> tuple[pd.DataFrame, Figure, plots.Panels]:
    """Columns of the efficiency frames against length, a panel for each; what they are a multiple of is a line at 1."""
    kinds, parts = {kind: efficiency(profile, kind) for kind, _ in wanted.values()}, []
    for title, (kind, column) in wanted.items():
        part = kinds[kind].query("variant in @TIMED").assign(what=title, of=column.split()[-1])
        parts.append(part.assign(**{name: part.get(column + end) for name, end in ENDS.items()}))
    frame = pd.concat(parts, ignore_index=True).dropna(subset="value")
    layout = {"panel": ["model", "what"], "size": (4.4, 3.3), "wrap": 2}
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
    paper = paper_times()
    for axis, part in grid:
        if part["what"].iloc[0] == dense:
            for variant, line in part.groupby("variant"):
                edges = (line["flops full of dense"], line["flops causal of dense"])
                axis.fill_between(line["length"], *edges, color=TIMED[variant].colour, alpha=0.15, linewidth=2)
            axis.scatter(paper.index, paper, 70, PAPER, marker="X", label="HARP in the paper (H100)")
    length = frame.loc[frame["repetitions"] > 1, "length"].max()
    title = (
        f"HARP reads {length:,.0f} tokens in {_last(frame, dense)} of the dense model's time, with tail-only prefill "
    )
    title += (
        f"in {_last(frame, dense, 'harp-tail')}; in {_last(frame, thinned)} and {_last(frame, thinned, 'harp-tail')} "
    )
    title += "of the evenly thinned model's"
    note = about(
        frame, "95 % intervals over repetitions; bands: operations left, of all and of visible query-key pairs"
    )
    return plots.finish(drawn, grid, title, note, x="tokens (log scale)", y="time, as a multiple")


@figure("efficiency")
def memory_and_decode(profile: dict) -> Figure:
    """What is left of the time of a new token, of the KV cache and of the peak of a prefill."""
    token, cache = "time of a new token, times dense", "KV cache, times dense"
    what = {token: ("decode", "of dense"), "the same, times thinned out evenly": ("decode", "of thinned")}
    what[cache] = ("prefill", "cache_bytes of dense")
    what["peak of a prefill, times dense"] = ("prefill", "peak_bytes of dense")
    frame, drawn, grid = _ratios(profile, what)
    left = frame[(frame["what"] == cache) & (frame["variant"] == HARP)]["value"].mean()
    title = f"With {left:.0%} of the cache HARP writes a token in {_last(frame, token)} of the dense model's time"
    note = about(frame, "marks upon each other are equal; 95 % intervals over repetitions of the times")
    return plots.finish(drawn, grid, title, note, x="tokens (log scale)", y="as a multiple")


@figure("efficiency")
def attention_share(profile: dict) -> Figure:
    """The share of attention in attention and FFN together, dense: of the operations, counted, and of the time."""
    rows, source = [], data.Source(profile["name"])
    for (model, _, task), cell in source.cells("efficiency").items():
        result = cell["result"]
        for pairs, counts in result["flops"].items() if task == "counted" else ():
            shares = [flops["attention"] / (flops["attention"] + flops["ffn"]) for flops in counts]
            rows += [(model, pairs, *row, None, None) for row in zip(result["lengths"], shares, strict=True)]
        if task.startswith("split-") and "failed" not in result:
            shares = [part["attention"] / (part["attention"] + part["ffn"]) for part in result["seconds"]["dense"]]
            rows.append((model, "time", cell["inputs"]["tokens"], *comparisons.mean_interval(shares)[:3]))
    looks = {"full": Look("operations, all pairs", FIRST, ""), "time": Look("time, measured", "black", line="none")}
    looks["causal"] = Look("operations, visible pairs", SECOND, "", "--")
    frame = pd.DataFrame(rows, columns=["model", "pairs", "length", *ENDS])
    drawn, grid = plots.lines(frame, "value", "length", "pairs", looks, bars=True, size=(7, 3.6))
    for axis, part in grid:
        crossing = source.result("efficiency", part["model"].iloc[0], "all", "counted")["intermediate_size"]
        axis.axvline(crossing, color=PAPER, linestyle=":", label="N = d_ff: the paper's crossing")
        _length_axis(axis)
    timed = frame[frame["pairs"] == "time"].sort_values("length")
    said = ", ".join(f"{row.value:.1%} at {row.length:,} tokens" for row in timed.itertuples())
    title = f"Of the time of attention and FFN together, attention takes {said or 'an unknown share'}"
    note = about(frame, "dense model; above the line attention takes more than the FFN; 95 % intervals")
    return plots.finish(
        drawn, grid, title, note, x="tokens of the prefill (log scale)", y="share of attention", level=0.5
    )


def time_found(profile: dict) -> list[str]:
    """What was found of HARP's time at the longest text that was timed repeatedly, for and against it: sentences."""
    read, said = efficiency(profile, "prefill"), []
    if read.empty:
        return ["Nothing was timed."]
    read = read.query("repetitions > 1").set_index(["model", "length", "variant"])
    for name, length in read.reset_index().groupby("model")["length"].max().items():
        at = read.loc[name, length]
        saved = (100 * (1 - at[["of dense", "of dense high", "of dense low"]])).T.to_dict("list")
        text = f"{display_name(name)}, {length:,} tokens: HARP saves {told(*saved['harp'], '.1f')} % of dense's time"
        if "harp-tail" in saved:
            text += (
                f", and {told(*saved['harp-tail'], '.1f')} % with tail-only prefill: no position but the last has to "
            )
            text += "enter the value-only layers at the top"
        said.append(f"{text}.")
        if "thinned" in saved:
            times = at[[f"of thinned{end}" for end in ENDS.values()]].T.to_dict("list")
            text = "As many groups can be thinned out evenly over all layers instead. HARP takes "
            text += f"{told(*times['harp'], '.3f')} times the time of that model"
            text += f", and {told(*times['harp-tail'], '.3f')} with tail-only prefill" if "harp-tail" in saved else ""
            said.append(f"{text}; an interval that holds 1 decides nothing.")
    return said
