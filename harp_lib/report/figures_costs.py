"""Figures of notebooks 04 and 08: what the methods take, and what that costs and saves."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from harp_lib.names import BASELINES, CORPUS_TITLES, METHOD_TITLES
from harp_lib.report import data, figure, plots
from harp_lib.report.plans import one_row_per_plan
from harp_lib.report.plots import LOOKS, PAPER, Look
from harp_lib.report.tables import (
    ENDS,
    VARIANTS,
    efficiency,
    lines,
    paper_times,
    perplexities,
    stacked,
)

HARP, FLAPPED = "harp", "harp+flap"
READ = (HARP, "harp-tail")  # a prefill in two ways
LOOK = {"harp-tail": ("#004d40", "*"), "harp-folded": ("#7cb518", "^"), "thinned": ("#920000", "D")}
TIMED = {"harp": LOOKS[HARP]} | {name: Look(VARIANTS[name], *look) for name, look in LOOK.items()}


@figure("baselines")
def baseline_groups(profile: dict) -> Figure:
    """Which share of each layer's key/value groups goes, or of HARP loses its queries and keys."""
    rows, stored = [], data.cells(profile["name"], "baselines")
    names = METHOD_TITLES | {"flap-squared": "FLAP (upstream)"}
    for (model, method, task), cell in stored.items():
        plan = cell["result"].get("plan") if task == "plan" else None
        for part in plan["layers"] if plan and method in names else ():
            gone = len(part.get("removed_groups") or ()) / cell["result"]["groups_per_layer"]
            share = 1.0 if part.get("alpha") is not None else gone
            rows.append((model, method, names[method], part["layer"], share, plan["num_layers"]))
    frame = pd.DataFrame(rows, columns=["model", "method", "title", "layer", "value", "layers"])
    frame = frame.sort_values(
        "method", key=lambda part: part.map(list(names).index), kind="stable", ignore_index=True
    )
    frame = one_row_per_plan(frame, stored).replace({"methods": names})
    drawn = plots.panels(frame, size=(5.2, 2.8), wrap=2, share=(False, False), x="layer")
    for axis, part in drawn.panels:
        for row, (method, own) in enumerate(part.groupby("method", sort=False)):
            colour = LOOKS[method.removesuffix("-squared")].colour
            axis.scatter(own["layer"], [row] * len(own), 70 * own["value"], colour, marker="s")
        axis.set_yticks(
            range(row + 1), [plots.in_lines(names) for names in part["methods"].unique()]
        )
        axis.set(xlim=(-1, part["layers"].iloc[0]), ylim=(row + 0.5, -0.5))
        axis.locator_params(axis="x", integer=True)
    title = "The key/value groups that each method removes, layer by layer"
    return plots.finish(
        drawn, title, "{model}a square is as large as the share of the layer's groups that goes"
    )


@figure("baselines")
def baseline_change(profile: dict) -> Figure:
    """How many times the held-out perplexity of HARP and HARP+FLAP each baseline has."""
    found, parts = perplexities(profile, "baselines", HARP, FLAPPED), []
    found = found.query("method in @BASELINES and split == 'validation'")
    found = one_row_per_plan(found, data.cells(profile["name"], "baselines"))
    for reference, equal in ((HARP, "heads"), (FLAPPED, "parameters")):
        part = found[["model", "method", "methods", "documents"]].assign(reference=reference)
        part[list(ENDS)] = 1 + found[[reference + end for end in ENDS.values()]].to_numpy()
        parts.append(
            part.assign(
                panel=f"as many {equal} as {METHOD_TITLES[reference]}\n"
                + found["corpus"].map(CORPUS_TITLES)
            )
        )
    frame = pd.concat(parts, ignore_index=True).dropna(subset="value")
    frame = frame.sort_values(
        "method", key=lambda part: part.map(list(BASELINES).index), kind="stable"
    )
    frame["title"] = frame["methods"].map(plots.in_lines)
    layout = {
        "size": (4.4, 1.8),
        "wrap": 2,
        "share": (True, False),
        "x": "perplexity, as a multiple (log scale)",
    }
    drawn = plots.dots(frame, "title", "method", panel=["model", "panel"], **layout)
    for axis, part in drawn.panels:
        axis.axvline(1, color=LOOKS[part["reference"].iloc[0]].colour, linewidth=1.5)
    held = plots.span(frame[frame["reference"] == FLAPPED]["value"])
    title = f"At equal parameters the baselines have {held} times HARP+FLAP's held-out perplexity"
    note = "{model}{documents} documents, 95 % intervals; right of the line the baseline is worse"
    return plots.finish(drawn, title, note, log="x")


def _ratios(profile: dict, wanted: dict[str, tuple[str, str]], **axes: str) -> Figure:
    """Columns of the efficiency frames against length, a panel for each; what they are a multiple
    of is a line at 1.
    """
    kinds, parts = {kind: efficiency(profile, kind) for kind, _ in wanted.values()}, []
    for title, (kind, column) in wanted.items():
        part = kinds[kind].query("variant in @TIMED").assign(what=title, of=column.split()[-1])
        parts.append(part.assign(**{name: part.get(column + end) for name, end in ENDS.items()}))
    frame = pd.concat(parts, ignore_index=True).dropna(subset="value")
    layout = {
        "panel": ["model", "what"],
        "size": (4.4, 3.3),
        "wrap": max(2, frame["model"].nunique()),
    }
    drawn = plots.lines(
        frame, "length", "variant", TIMED, bars=True, x="tokens (log scale)", **layout, **axes
    )
    for axis, part in drawn.panels:
        axis.axhline(1, color=(LOOKS | TIMED)[part["of"].iloc[0]].colour, linewidth=1, zorder=0)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(LogLocator(base=2, numticks=7))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter("{x:,.0f}")
    return drawn


@figure("efficiency")
def time_saved(profile: dict) -> Figure:
    """The time of a prefill as a multiple of dense, beside the operations left, and of as many
    groups thinned out.
    """
    dense, thinned = "times the dense model's", "times the evenly thinned model's"
    what = {dense: ("prefill", "of dense"), thinned: ("prefill", "of thinned")}
    drawn, paper = _ratios(profile, what, y="time, as a multiple"), paper_times()
    for axis, part in drawn.panels:
        if part["what"].iloc[0] == dense:
            for variant, line in part.groupby("variant"):
                edges = (line["flops full of dense"], line["flops causal of dense"])
                axis.fill_between(
                    line["length"], *edges, color=TIMED[variant].colour, alpha=0.15, linewidth=2
                )
            axis.scatter(
                paper.index, paper, 70, PAPER, marker="X", label="HARP in the paper (H100)"
            )
    longest = drawn.numbers["length"].max()
    last = drawn.numbers.query("variant == @HARP and length == @longest").groupby(
        "what", sort=False
    )["value"]
    title = f"HARP takes {' and '.join(f'{plots.span(part)} {name}' for name, part in last)} time at {longest:,} tokens"
    note = "95 % intervals over repetitions; bands: operations left, of all and of visible query-key pairs"
    return plots.finish(drawn, title, note)


@figure("efficiency")
def memory_and_decode(profile: dict) -> Figure:
    """What is left of the time of a new token, of the KV cache and of the peak of a prefill."""
    cache = "KV cache, times dense"
    what = {
        "time of a new token, times dense": ("decode", "of dense"),
        cache: ("prefill", "cache_bytes of dense"),
    }
    what["time of a new token, times thinned out evenly"] = ("decode", "of thinned")
    what["peak of a prefill, times dense"] = ("prefill", "peak_bytes of dense")
    drawn = _ratios(profile, what, y="as a multiple")
    left = plots.span(drawn.numbers.query("what == @cache and variant == @HARP")["value"], ".0%")
    note = "{model}marks upon each other are equal; 95 % intervals over repetitions of the times"
    return plots.finish(drawn, f"HARP keeps {left} of the KV cache", note)


def time_found(profile: dict) -> pd.DataFrame:
    """HARP's time of the longest text that was timed repeatedly, as a multiple: what speaks for it,
    and against it.
    """
    read, rows = efficiency(profile, "prefill"), []
    for name, part in (
        read.query("repetitions > 1").groupby("model", sort=False) if len(read) else ()
    ):
        last = part[part["length"] == part["length"].max()].set_index("variant")
        for other in ("dense", "thinned"):
            row = {"model": name, "length": last["length"].iloc[0], "other": VARIANTS[other]}
            row |= {
                f"{v}{end}": last.get(f"of {other}{end}", {}).get(v)
                for v in READ
                for end in ENDS.values()
            }
            rows += [row] * pd.notna(row[HARP])
    columns = {"model": "{model}", "tokens": "{length:,}", "against": "{other}"}
    columns |= {VARIANTS[v]: f"{{{v}:.3f}} [{{{v} low:.3f}}, {{{v} high:.3f}}]" for v in READ}
    return stacked(lines(pd.DataFrame(rows), columns))
