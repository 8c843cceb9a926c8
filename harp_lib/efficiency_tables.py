"""Tables of notebook 08."""

from collections.abc import Iterator
from math import isnan
from typing import Any

import pandas as pd

from harp_lib.efficiency_frames import (
    MIB,
    PAPER_MODEL,
    PARTS,
    TITLE,
    counted,
    decode_frame,
    memory_frame,
    missing_frame,
    model_title,
    prefill_frame,
    published_frame,
    published_saved,
    ratio_frame,
    saved_text,
    share_frame,
    share_text,
    speed_up,
    split_frame,
)
from harp_lib.efficiency_verdict import verdict
from harp_lib.experiments.efficiency_study import EXPERIMENT
from harp_lib.experiments.efficiency_variants import DENSE, FOLDED, HARP, THINNED
from harp_lib.results import Cells


def efficiency_tables(cells: Cells) -> Iterator[tuple[pd.DataFrame, str, pd.DataFrame]]:
    """Every table of the experiment, its file name, and its unrounded numbers."""
    yield setting(cells), f"{EXPERIMENT}_setting", setting(cells)
    yield prefill_times(cells), f"{EXPERIMENT}_prefill", prefill_frame(cells)
    yield equal_heads(cells), f"{EXPERIMENT}_equal_heads", equal_heads_frame(cells)
    yield shares(cells), f"{EXPERIMENT}_share", share_frame(cells)
    yield split_times(cells), f"{EXPERIMENT}_split", split_frame(cells)
    yield decode_speeds(cells), f"{EXPERIMENT}_decode", decode_frame(cells)
    yield memory_use(cells), f"{EXPERIMENT}_memory", memory_frame(cells)
    yield overtaking(cells), f"{EXPERIMENT}_overtaking", overtaking(cells)
    if len(missing_frame(cells)):
        yield missing(cells), f"{EXPERIMENT}_missing", missing_frame(cells)
    claims = verdict(cells)
    yield claims, f"{EXPERIMENT}_verdict", claims


def setting(cells: Cells) -> pd.DataFrame:
    """What is timed, and on what: one row for each model and variant."""
    rows = []
    for model, shape in counted(cells).items():
        timed = [cell["inputs"] for (name, *_), cell in cells.items() if name == model and "threads" in cell["inputs"]]
        for variant, numbers in shape["variants"].items():
            rows.append(
                {
                    "model": model_title(cells, model),
                    "variant": TITLE[variant],
                    "key/value groups removed": f"{numbers['removed_groups']} of {numbers['groups']}",
                    "layers without attention": f"{numbers['layers_without_attention']} of {shape['layers']}",
                    "decoder parameters removed": share_text(numbers["removed_fraction"]),
                    "parameters": f"{numbers['parameters'] / 1e6:.2f} million",
                    "device": ", ".join(dict.fromkeys(inputs["device"] for inputs in timed)),
                    "CPU threads": ", ".join(dict.fromkeys(str(inputs["threads"]) for inputs in timed)),
                    "dtype": ", ".join(dict.fromkeys(inputs["dtype"].removeprefix("torch.") for inputs in timed)),
                }
            )
    return pd.DataFrame(rows)


def prefill_times(cells: Cells) -> pd.DataFrame:
    """Seconds of a prefill ± half the 95 % interval, and what they save; the paper's below."""
    rows = [
        {
            "model": model_title(cells, row.model),
            "tokens": f"{row.tokens:,}",
            "variant": TITLE[row.variant],
            "seconds": _seconds(row.seconds, row.high - row.seconds),
            **_saving(row),
            "operations saved, visible pairs": "" if row.variant == DENSE else share_text(row.counted_causal),
            "operations saved, all pairs": "" if row.variant == DENSE else share_text(row.counted_full),
            "repetitions": row.repetitions,
        }
        for row in prefill_frame(cells).itertuples()
    ]
    saved = published_saved()
    rows += [
        {
            "model": f"{PAPER_MODEL} (paper, H100)",
            "tokens": f"{row.tokens:,}",
            "variant": TITLE[row.variant],
            "seconds": _seconds(row.seconds, row.half_width),
            "time saved": share_text(saved[row.tokens]) if row.variant == HARP else "",
            "speed-up": f"{1 / (1 - saved[row.tokens]):.2f}×" if row.variant == HARP else "",
            "repetitions": 10,
        }
        for row in published_frame().sort_values(["tokens", "variant"]).itertuples()
    ]
    return pd.DataFrame(rows).fillna("")


def equal_heads_frame(cells: Cells) -> pd.DataFrame:
    """Ways to remove as many heads, and their times in times of the thinned-out model's, at each repeated length."""
    frame = prefill_frame(cells)
    frame = frame[(frame["variant"] != DENSE) & (frame["repetitions"] > 1)]
    ratios = [ratio_frame(cells, "prefill", THINNED, variant).assign(variant=variant) for variant in (HARP, FOLDED)]
    ratios = pd.concat(ratios).drop(columns="repetitions")
    renamed = {"low": "ratio_low", "high": "ratio_high"}
    frame = frame[frame["model"].isin(ratios["model"])]  # others cannot be thinned out
    keys = ["model", "tokens", "variant"]
    return frame.merge(ratios.rename(columns=renamed), "left", keys).drop(columns=["seconds", "low", "high"])


def equal_heads(cells: Cells) -> pd.DataFrame:
    """The same number of key/value groups removed in three ways: operations, time, and is it the same time?"""
    return pd.DataFrame(
        {
            "model": model_title(cells, row.model),
            "tokens": f"{row.tokens:,}",
            "variant": TITLE[row.variant],
            "groups removed": counted(cells)[row.model]["variants"][row.variant]["removed_groups"],
            "operations saved, visible pairs": share_text(row.counted_causal),
            "operations saved, all pairs": share_text(row.counted_full),
            "time saved": saved_text(row),
            "time, in times of thinned out": ""
            if row.variant == THINNED
            else f"{row.ratio:.3f} [{row.ratio_low:.3f}, {row.ratio_high:.3f}]",
            "than thinned out": "" if row.variant == THINNED else _told_apart(row.ratio_low, row.ratio_high),
            "repetitions": row.repetitions,
        }
        for row in equal_heads_frame(cells).itertuples()
    )


def shares(cells: Cells) -> pd.DataFrame:
    """The counted share of each part in the operations of all dense layers, length by length."""
    keys = ["model", "pairs", "tokens"]
    table = share_frame(cells).pivot_table(index=keys, columns="part", values="share", sort=False).reset_index()
    return pd.DataFrame(
        {
            "model": [model_title(cells, model) for model in table["model"]],
            "query-key pairs counted": table["pairs"].map({"full": "all", "causal": "visible"}),
            "tokens": table["tokens"].map("{:,}".format),
            "projections": table["projections"].map(share_text),
            "attention (QKᵀ and AV)": table["attention"].map(share_text),
            "FFN": table["ffn"].map(share_text),
        }
    )


def split_times(cells: Cells) -> pd.DataFrame:
    """Seconds of a prefill in attention, its projections, FFN and the rest ± half the 95 % interval."""
    rows = []
    for (model, tokens, variant), part in split_frame(cells).groupby(["model", "tokens", "variant"], sort=False):
        by_part = part.set_index("part")
        row = {"model": model_title(cells, model), "tokens": f"{tokens:,}", "variant": TITLE[variant]}
        for name, title in PARTS.items():
            found = by_part.loc[name]
            row[f"{title}, seconds"] = _seconds(found["seconds"], found["high"] - found["seconds"])
        share = by_part.loc["attention"]
        row["attention, of it and FFN"] = share_text(share["of_two"], share["of_two_low"], share["of_two_high"])
        rows.append(row | {"repetitions": share["repetitions"]})
    return pd.DataFrame(rows)


def decode_speeds(cells: Cells) -> pd.DataFrame:
    """New tokens a second ± half the 95 % interval, and what is saved of time and of bytes."""
    return pd.DataFrame(
        {
            "model": model_title(cells, row.model),
            "tokens in the cache": f"{row.tokens:,}",
            "variant": TITLE[row.variant],
            "new tokens per second": f"{row.speed:.2f}" + ("" if isnan(row.high) else f" ± {row.high - row.speed:.2f}"),
            **_saving(row),
            "bytes moved for a token": f"{row.bytes / MIB:,.1f} MiB",
            "bytes saved": "" if row.variant == DENSE else share_text(row.bytes_saved),
            "new tokens timed": row.steps,
            "repetitions": row.repetitions,
        }
        for row in decode_frame(cells).itertuples()
    )


def memory_use(cells: Cells) -> pd.DataFrame:
    """Bytes of the KV cache, held and counted, and the peak of one prefill."""
    return pd.DataFrame(
        {
            "model": model_title(cells, row.model),
            "tokens": f"{row.tokens:,}",
            "variant": TITLE[row.variant],
            "KV cache held, bytes": f"{row.cache:,}",
            "counted, bytes": f"{row.cache_counted:,}",
            "peak beyond the weights": "not measured" if isnan(row.peak) else f"{row.peak / MIB:,.1f} MiB",
        }
        for row in memory_frame(cells).itertuples()
    )


def overtaking(cells: Cells) -> pd.DataFrame:
    """The shortest prefill in which attention takes as many operations as the FFNs, counted in four ways."""
    ways = {"attention": "attention alone", "with_projections": "attention and projections"}
    pairs = {"full": "all pairs", "causal": "visible pairs"}
    return pd.DataFrame(
        {"model": model_title(cells, model), "d_ff": f"{shape['intermediate_size']:,}"}
        | {
            f"{way}, {counted_pairs}": f"{found:,}" if (found := shape["overtaking"][key][part]) else "never"
            for part, way in ways.items()
            for key, counted_pairs in pairs.items()
        }
        for model, shape in counted(cells).items()
    )


def missing(cells: Cells) -> pd.DataFrame:
    """What was not measured, and why."""
    frame = missing_frame(cells)
    return frame.assign(model=[model_title(cells, model) for model in frame["model"]])


def _saving(row: Any) -> dict[str, str]:
    """The time that a variant saves, as a share and as a speed-up; nothing for the dense model."""
    if row.variant == DENSE:
        return {"time saved": "", "speed-up": ""}
    return {"time saved": saved_text(row), "speed-up": speed_up(row)}


def _told_apart(low: float, high: float) -> str:
    return "less time" if high < 1 else "more time" if low > 1 else "too small to tell"


def _seconds(value: float, half: float) -> str:
    return f"{value:.4f}" if isnan(half) else f"{value:.4f} ± {half:.4f}"
