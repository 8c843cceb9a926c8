"""Figures of notebook 09: what a refit wins, against which controls, and where it fails."""

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from harp_lib.names import display_name
from harp_lib.report import data, figure, plots
from harp_lib.report.perplexity_changes import (
    PASSKEY,
    REFIT,
    REFITTED,
    TEXTS,
    changes,
    is_third,
    num_layers,
    third_text,
    usual,
    with_coordinates,
)
from harp_lib.report.plots import LOOKS, Look, span

EXPLAINED = Look("explained best", "#1b9e9e", "^", "-.")
BY_LAYERS = {  # of method and ranking
    ("harp", "top"): LOOKS["harp"]._replace(label="HARP (top layers, searched α)"),
    ("alpha-fit", "influence"): LOOKS["harp"]._replace(
        label="α by least squares, layers of least influence", line=":", hollow=True
    ),
    (REFIT, "top"): LOOKS[REFIT]._replace(label="refit, top layers", line="--", hollow=True),
    (REFIT, "influence"): LOOKS[REFIT]._replace(label="refit, layers of least influence"),
}
CONTROLS = {  # from top to bottom
    ("alpha-0", "top"): "no attention, top",
    ("harp", "top"): "HARP, top",
    ("alpha-fit", "top"): "α by least squares, top",
    ("alpha-fit", "explained"): "α by least squares, explained best",
    ("alpha-fit", "influence"): "α by least squares, least influence",
    ("nbl", "top"): "NBL, top",
    ("nbl", "explained"): "NBL, explained best",
    ("nbl", "influence"): "NBL, least influence",
    (REFIT, "top"): "refit, top",
    (REFIT, "explained"): "refit, explained best",
}
RANKINGS = {
    "influence": LOOKS[REFIT]._replace(label="least block influence"),
    "explained": EXPLAINED._replace(label="explained best by a linear map"),
    "top": LOOKS[REFIT]._replace(label="the top layers", line="--", hollow=True),
    "greedy": Look("greedy by perplexity", "#e7298a", "s", "-."),
    "gate-norm": Look("Gate-Norm (no text)", "#5a5a5a", "D", ":"),
}
RIVALS = {
    "harp": LOOKS["harp"]._replace(label="HARP"),
    REFIT: LOOKS[REFIT]._replace(label="refit"),
    "nbl": Look("NBL", "#a6761d", "v"),
    "linear": Look("least squares, full rank", "#e7298a", "^"),
    "neighbours": Look("own, previous and first token", "#66a61e", "P"),
    "windowed": Look("window of 32, 4 sinks (keeps Q, K)", "#5a5a5a", "D"),
    "boundary": Look("K, V from below (keeps Q, cache)", "#1b9e9e", "X"),
}
FOUND_BY = {  # from top to bottom
    ("dense", ""): "dense",
    ("harp", "top"): "HARP, top",
    ("alpha-fit", "influence"): "α by least squares, least influence",
    (REFIT, "top"): "refit, top",
    (REFIT, "explained"): "refit, explained best",
    (REFIT, "influence"): "refit, least influence",
}
FITTED_TO = ("#3b1f6b", "#a58ac9")  # the two kinds of text that things are fitted on
NOT_FITTED_TO = "#d55e00"
TWO_COLUMNS = {"wrap": 2, "size": (5.2, 3.4)}


def text_looks(profile: dict) -> dict[str, Look]:
    """How each text is drawn: the one that nothing was fitted to stands out."""
    third = third_text(profile)
    corpora = data.tidy(profile["name"], "frontier", "nll")["corpus"].unique()
    fitted_to = [name for name in corpora if name not in (third, PASSKEY)]
    looks = {}
    for name, colour, marker in zip(fitted_to, FITTED_TO, ("o", "s"), strict=False):
        looks[name] = Look(f"{TEXTS[name]} (fitted to its other pages)", colour, marker)
    looks[third] = Look(f"{TEXTS[third]} (nothing was fitted to it)", NOT_FITTED_TO, "D")
    return looks


def _keyed(frame: pd.DataFrame, looks: dict) -> pd.DataFrame:
    """The rows whose method and ranking have a look, with that key as a column, in order."""
    keys = list(zip(frame["method"], frame["ranking"].fillna(""), strict=True))
    shown = frame.assign(key=keys)[[key in looks for key in keys]]
    order = {key: place for place, key in enumerate(looks)}
    return shown.sort_values("key", key=lambda column: column.map(order), kind="stable")


def _by_model(frame: pd.DataFrame, profile: dict) -> pd.DataFrame:
    order = {name: place for place, name in enumerate(profile["models"])}
    return frame.sort_values("model", key=lambda column: column.map(order), kind="stable")


def _without_other_texts(frame: pd.DataFrame) -> pd.DataFrame:
    """HARP's search read one text; a refit on one text is compared in :func:`frontier_rivals`."""
    return frame[(frame["texts"] != 1) | (frame["method"] != REFIT)]


@figure("frontier")
def frontier(profile: dict) -> Figure:
    """Perplexity of the third text against the number of layers that have no attention."""
    frame = _without_other_texts(usual(changes(profile)))
    third = third_text(profile)
    frame = _by_model(_keyed(frame[frame["corpus"] == third], BY_LAYERS), profile)
    layout = {
        "bars": True,
        "share": (False, False),
        "x": "value-only layers",
        "y": "times the dense perplexity (log scale)",
    }
    drawn = plots.lines(frame, "layers", "key", BY_LAYERS, **TWO_COLUMNS, **layout)
    multiples = {key: span(part["value"], ".1f") for key, part in _largest(frame).groupby("key")}
    title = (
        f"With the most layers changed, perplexity is {multiples['harp', 'top']} times the dense "
        f"model's by HARP and {multiples[REFIT, 'influence']} refitted"
    )
    note = (
        f"{{model}}{TEXTS[third]}, which nothing was fitted to; "
        "95 % intervals over {documents} documents"
    )
    return plots.finish(drawn, title, note, log="y", level=1)


def _largest(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with the most layers of each model."""
    return frame[frame["layers"] == frame.groupby("model")["layers"].transform("max")]


@figure("frontier")
def frontier_controls(profile: dict) -> Figure:
    """A third of the layers: perplexity of each control as a multiple of the refit's."""
    frame = usual(changes(profile, REFITTED))
    frame = _without_other_texts(frame[is_third(frame, num_layers(profile))])
    frame = frame[frame["corpus"] != PASSKEY]
    frame = _by_model(_keyed(frame, CONTROLS), profile)
    frame["control"] = frame["key"].map(CONTROLS)
    layout = {
        "share": (False, True),
        "size": (5.2, 4.2),
        "wrap": 2,
        "x": "times the perplexity of the refit of the layers of least influence (log scale)",
    }
    drawn = plots.dots(frame, "control", "corpus", text_looks(profile), **layout)
    for axis, _ in drawn.panels:
        axis.axvline(1, color=plots.DENSE, linewidth=1)
    same = {method: frame[frame["key"] == (method, "influence")] for method in ("nbl", "alpha-fit")}
    title = (
        f"The third of least influence: NBL has {span(same['nbl']['value'])} times the "
        f"refit's perplexity, α by least squares {span(same['alpha-fit']['value'], '.1f')} times"
    )
    return plots.finish(drawn, title, "{model}95 % intervals over {documents} documents", log="x")


@figure("frontier")
def frontier_rankings(profile: dict) -> Figure:
    """Perplexity of the third text under the refit, by how its layers are chosen."""
    frame = usual(changes(profile))
    third = third_text(profile)
    frame = frame[(frame["method"] == REFIT) & (frame["texts"] == 2) & (frame["corpus"] == third)]
    frame = _by_model(data.in_order(frame, "ranking", RANKINGS), profile)
    layout = {
        "bars": True,
        "share": (False, False),
        "x": "refitted layers",
        "y": "times the dense perplexity (log scale)",
    }
    drawn = plots.lines(frame, "layers", "ranking", RANKINGS, **TWO_COLUMNS, **layout)
    best = _largest(frame).sort_values("value").groupby("model")["ranking"].first()
    counted = int((best == "influence").sum())
    title = (
        f"Which layers? Those of least influence are ahead on {counted} of {len(best)} models "
        "where most are refitted"
    )
    note = f"{{model}}{TEXTS[third]}; 95 % intervals over {{documents}} documents"
    return plots.finish(drawn, title, note, log="y", level=1)


@figure("frontier")
def frontier_curve(profile: dict) -> Figure | None:
    """Perplexity of a refit of a third of the layers by the amount of calibration text."""
    frame = changes(profile)
    chosen = (frame["method"] == REFIT) & (frame["ranking"] == "explained") & (frame["seed"] == 0)
    frame = frame[chosen & (frame["prompts"] == 0) & frame["without"].isna()]
    frame = frame[is_third(frame, num_layers(profile)) & (frame["corpus"] != PASSKEY)]
    amounts = frame.groupby("model")["calibration_tokens"].transform("nunique")
    frame = _by_model(frame[amounts > 1], profile)
    if frame.empty:
        return None
    layout = {
        "bars": True,
        "share": (True, False),
        "x": "tokens that the refit is fitted on (log scale)",
        "y": "times the dense perplexity",
    }
    looks = text_looks(profile)
    drawn = plots.lines(frame, "calibration_tokens", "corpus", looks, **TWO_COLUMNS, **layout)
    fewest = frame["calibration_tokens"].min()
    most = frame["calibration_tokens"].max()
    ends = [
        span(frame.loc[frame["calibration_tokens"] == end, "value"], ".1f").replace(" to ", "–")
        for end in (fewest, most)
    ]
    title = (
        f"From {fewest:,.0f} to {most:,.0f} tokens perplexity falls from {ends[0]} "
        f"to {ends[1]} times the dense model's"
    )
    return plots.finish(drawn, title, "{model}95 % intervals over {documents} documents", log="x")


@figure("frontier")
def frontier_rivals(profile: dict) -> Figure | None:
    """Perplexity with other replacements of attention in HARP's layers."""
    frame = usual(changes(profile))
    compared = frame.loc[frame["method"] == "boundary", ["model", "layers"]].drop_duplicates()
    if compared.empty:
        return None
    frame = frame.merge(compared, on=["model", "layers"])
    frame = frame[(frame["ranking"] == "top") & (frame["corpus"] != PASSKEY)]
    one_text = (frame["texts"] == 1) & (frame["method"] != "harp")
    frame = frame[frame["method"].isin(RIVALS) & ~one_text]
    frame = _by_model(data.in_order(frame, "method", RIVALS), profile)
    frame["title"] = [RIVALS[method].label for method in frame["method"]]
    layout = {
        "wrap": 2,
        "size": (5.2, 3.4),
        "share": (False, True),
        "x": "times the dense perplexity (log scale)",
    }
    drawn = plots.dots(frame, "title", "corpus", text_looks(profile), **layout)
    for axis, _ in drawn.panels:
        axis.axvline(1, color=plots.DENSE, linewidth=1)
    layers = ", ".join(
        f"{display_name(model)}: {count}" for model, count in compared.itertuples(index=False)
    )
    title = "What else could stand in HARP's layers?"
    note = f"{{model}}top layers ({layers}); 95 % intervals over {{documents}} documents"
    return plots.finish(drawn, title, note, log="x")


@figure("frontier")
def passkeys_by_depth(profile: dict) -> Figure:
    """Share of pass keys that are found with a third of the layers changed, by their place."""
    frame = usual(with_coordinates(data.tidy(profile["name"], "frontier", "exact")))
    third = is_third(frame, num_layers(profile)) | (frame["layers"] == 0)
    frame = _keyed(_without_other_texts(frame[third]), FOUND_BY)
    found = frame.groupby(["model", "key", "depth"], sort=False)["value"].agg(["mean", "size"])
    found = found.reset_index().rename(columns={"mean": "value", "size": "keys"})
    found["what"] = found["key"].map(FOUND_BY)
    found["low"] = found["value"]
    found["high"] = found["value"]
    found = _by_model(found, profile)
    depths = sorted(found["depth"].unique())
    colours = colormaps["viridis"](np.linspace(0.1, 0.9, len(depths)))
    looks = {
        depth: Look(f"{depth:.0%} into the text", to_hex(colour), "o")
        for depth, colour in zip(depths, colours, strict=True)
    }
    layout = {
        "share": (True, True),
        "size": (5.2, 3.4),
        "wrap": 2,
        "x": "share of keys found",
    }
    drawn = plots.dots(found, "what", "depth", looks, **layout)
    of_refit = found[found["key"] == (REFIT, "influence")].groupby("model", sort=False)["value"]
    shares = ", ".join(
        f"{display_name(model)} {share:.0%}" for model, share in of_refit.mean().items()
    )
    title = f"Pass keys that the refit of the layers of least influence finds: {shares}"
    note = f"{{model}}{span(found['keys'], '.0f')} keys at each place"
    return plots.finish(drawn, title, note)


@figure("frontier")
def explained_variance(profile: dict) -> Figure:
    """How much of an attention's variance a linear map of its own token explains, by layer."""
    frame = data.tidy(profile["name"], "frontier", "explained")
    frame = frame[(frame["method"] == "dense") & (frame["seed"] == 0)]
    frame = _by_model(frame, profile)
    looks = {"dense": Look("one layer refitted, the others dense", plots.DENSE, "s")}
    layout = {"share": (False, True), "x": "layer index (0 is the bottom)"}
    layout["y"] = "explained variance"
    drawn = plots.lines(frame, "layer", "method", looks, **TWO_COLUMNS, **layout)
    title = f"A token's own values explain {span(frame['value'])} of what attention puts out"
    return plots.finish(drawn, title, "{model}of the calibration text itself", ylim=(0, 1))
