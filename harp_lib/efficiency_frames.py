"""The cells of notebook 08 as tidy frames: seconds with intervals, beside what is counted."""

from collections.abc import Iterator
from math import isnan, nan
from typing import Any

import pandas as pd

from harp_lib.experiments.efficiency_study import ALL, PAIRS
from harp_lib.experiments.efficiency_variants import DENSE, FOLDED, HARP, LEFT_OUT, THINNED, VARIANTS
from harp_lib.measure.models import display_name
from harp_lib.measure.timing import ratio_interval
from harp_lib.published import published
from harp_lib.results import Cells
from harp_lib.statistics import Interval, mean_interval

TITLE = {DENSE: "dense", HARP: "HARP", FOLDED: "HARP, folded", THINNED: "thinned out"}
"""What tables and figures call a variant."""
PAPER_MODEL = "LLaMA3.1-8B"  # on which the paper measures
MIB = 2**20
PARTS = {"attention": "attention", "projections": "its projections", "ffn": "FFN", "rest": "the rest"}


def counted(cells: Cells) -> dict[str, dict[str, Any]]:
    """What is counted of each model: a name → the result of :meth:`EfficiencyStudy.counted`."""
    return {model: cell["result"] for (model, _, task), cell in cells.items() if task == "counted"}


def variants_of(cells: Cells, model: str) -> list[str]:
    """The variants that a model has, in order."""
    return [variant for variant in VARIANTS if variant in counted(cells)[model]["variants"]]


def model_title(cells: Cells, model: str) -> str:
    """What tables and figures call a model."""
    shape = counted(cells)[model]
    if not shape["random_shape"]:
        return display_name(model)
    cut = shape["layers"] < shape["whole_layers"]
    return f"{model} shape, random weights" + (f", {shape['layers']} of {shape['whole_layers']} layers" if cut else "")


def is_the_papers(cells: Cells, model: str) -> bool:
    """Whether the paper's seconds are of this model."""
    return model == PAPER_MODEL and counted(cells)[model]["layers"] == counted(cells)[model]["whole_layers"]


def share_text(share: float, low: float = nan, high: float = nan) -> str:
    """A share in per cent, with its interval where it has one."""
    return f"{100 * share:.1f} %" + ("" if isnan(low) else f" [{100 * low:.1f}, {100 * high:.1f}]")


def saved_text(row: Any) -> str:
    """The share of time that a row of a frame says is saved."""
    return share_text(row.saved, row.saved_low, row.saved_high)


def speed_up(row: Any) -> str:
    """The same as how many times as much is done in the same time."""
    return f"{1 / (1 - row.saved):.2f}×"


def _measured(cells: Cells, kind: str) -> Iterator[tuple[str, int, dict[str, Any], dict[str, Any]]]:
    """Model, tokens, inputs and result of each cell of a kind that did not fail, by length."""
    order = list(counted(cells))
    found = [
        (model, cell["inputs"]["tokens"], cell["inputs"], cell["result"])
        for (model, method, task), cell in cells.items()
        if method == ALL and task.startswith(f"{kind}-") and "failed" not in cell["result"]
    ]
    yield from sorted(found, key=lambda row: (order.index(row[0]), row[1]))


def _saved(ratio: Interval) -> dict[str, float]:
    """A ratio of times as the share of time that is saved."""
    return {"saved": 1 - ratio.value, "saved_low": 1 - ratio.high, "saved_high": 1 - ratio.low}


def prefill_frame(cells: Cells) -> pd.DataFrame:
    """Seconds of a prefill for each model, length and variant.

    Columns: model, tokens, variant, repetitions, seconds, low, high (95 % interval); saved, saved_low, saved_high: the
    share of the dense model's time, paired by repetition; counted_full, counted_causal: the share of its operations.
    """
    rows = []
    for model, tokens, _, result in _measured(cells, "prefill"):
        for variant, seconds in result["seconds"].items():
            value, low, high = mean_interval(seconds)
            row = {"model": model, "tokens": tokens, "variant": variant, "repetitions": len(seconds)}
            row |= {"seconds": value, "low": low, "high": high}
            if variant != DENSE:
                row |= _saved(ratio_interval(result["seconds"][DENSE], seconds))
                for pairs in PAIRS:
                    flops = result["flops"][pairs]
                    row[f"counted_{pairs}"] = 1 - flops[variant] / flops[DENSE]
            rows.append(row)
    columns = ["model", "tokens", "variant", "repetitions", "seconds", "low", "high"]
    columns += ["saved", "saved_low", "saved_high", *(f"counted_{pairs}" for pairs in PAIRS)]
    return pd.DataFrame(rows, columns=columns)


def ratio_frame(cells: Cells, kind: str, first: str, second: str) -> pd.DataFrame:
    """Time of ``second`` in times of ``first``, in a ``prefill`` or ``decode``, paired by repetition.

    Columns: model, tokens, repetitions, ratio, low, high. Without the models that lack one of the two.
    """
    rows = [
        (model, tokens, inputs["repetitions"], *ratio_interval(result["seconds"][first], result["seconds"][second]))
        for model, tokens, inputs, result in _measured(cells, kind)
        if {first, second} <= set(result["seconds"])
    ]
    return pd.DataFrame(rows, columns=["model", "tokens", "repetitions", "ratio", "low", "high"])


def decode_frame(cells: Cells) -> pd.DataFrame:
    """New tokens a second after a context, for each model, context and variant.

    Columns: model, tokens (of the context), variant, repetitions, steps, speed, low, high (tokens a second, 95 %
    interval), saved, saved_low, saved_high (time, paired), bytes (weights and cache that a token moves), bytes_saved.
    """
    rows = []
    for model, tokens, inputs, result in _measured(cells, "decode"):
        for variant, seconds in result["seconds"].items():
            value, low, high = mean_interval([inputs["steps"] / each for each in seconds])
            row = {"model": model, "tokens": tokens, "variant": variant, "repetitions": len(seconds)}
            row |= {"steps": inputs["steps"], "speed": value, "low": low, "high": high}
            row["bytes"] = result["bytes"][variant]
            if variant != DENSE:
                row |= _saved(ratio_interval(result["seconds"][DENSE], seconds))
                row["bytes_saved"] = 1 - result["bytes"][variant] / result["bytes"][DENSE]
            rows.append(row)
    columns = ["model", "tokens", "variant", "repetitions", "steps", "speed", "low", "high"]
    return pd.DataFrame(rows, columns=[*columns, "saved", "saved_low", "saved_high", "bytes", "bytes_saved"])


def split_frame(cells: Cells) -> pd.DataFrame:
    """Where the time of a prefill goes: model, tokens, variant, part, repetitions, seconds, low, high.

    ``share``, ``share_low``, ``share_high`` are of attention, projections and FFN together: None for the rest. For
    attention, ``of_two``, ``of_two_low``, ``of_two_high`` are its share of attention and FFN alone.
    """
    rows = []
    for model, tokens, _, result in _measured(cells, "split"):
        for variant, runs in result["seconds"].items():
            for part in PARTS:
                row = {"model": model, "tokens": tokens, "variant": variant, "part": part, "repetitions": len(runs)}
                row |= dict(zip(("seconds", "low", "high"), mean_interval([run[part] for run in runs]), strict=True))
                wholes = {"share": ("attention", "projections", "ffn"), "of_two": ("attention", "ffn")}
                for name, whole in wholes.items():
                    if part != "rest" and (name == "share" or part == "attention"):
                        share = mean_interval([run[part] / sum(run[other] for other in whole) for run in runs])
                        row |= dict(zip((name, f"{name}_low", f"{name}_high"), share, strict=True))
                rows.append(row)
    columns = ["model", "tokens", "variant", "part", "repetitions", "seconds", "low", "high"]
    shares = [f"{name}{end}" for name in ("share", "of_two") for end in ("", "_low", "_high")]
    return pd.DataFrame(rows, columns=[*columns, *shares])


def share_frame(cells: Cells) -> pd.DataFrame:
    """The counted share of each part in the operations of all layers: model, pairs, tokens, part, share."""
    rows = [
        (model, pairs, tokens, part, flops / sum(parts.values()))
        for model, shape in counted(cells).items()
        for pairs in PAIRS
        for tokens, parts in zip(shape["lengths"], shape["flops"][pairs], strict=True)
        for part, flops in parts.items()
    ]
    return pd.DataFrame(rows, columns=["model", "pairs", "tokens", "part", "share"])


def memory_frame(cells: Cells) -> pd.DataFrame:
    """Bytes of a prefill: model, tokens, variant, cache (held), cache_counted, peak (beyond the weights; or nan)."""
    rows = []
    for model, tokens, _, result in _measured(cells, "prefill"):
        for variant, held in result["cache_bytes"].items():
            each = counted(cells)[model]["variants"][variant]["kv_bytes_per_token"]
            rows.append((model, tokens, variant, held, each * tokens, result["peak_bytes"][variant]))
    frame = pd.DataFrame(rows, columns=["model", "tokens", "variant", "cache", "cache_counted", "peak"])
    return frame.astype({"peak": float})  # None becomes nan


def missing_frame(cells: Cells) -> pd.DataFrame:
    """What was not measured, and why: model, what, reason."""
    rows = []
    for (model, _, task), cell in cells.items():
        result = cell["result"]
        if "failed" in result:
            rows.append((model, "{} at {} tokens".format(*task.split("-")), result["failed"]))
        for tokens in result.get("left_out", ()):
            rows.append((model, f"all at {tokens} tokens", "more than the model reads"))
    for model in counted(cells):
        has = variants_of(cells, model)
        rows += [(model, TITLE[variant], reason) for variant, reason in LEFT_OUT.items() if variant not in has]
    peaks = memory_frame(cells).groupby(["model", "tokens"], sort=False)["peak"].count()
    for model, tokens in peaks[peaks == 0].index:
        rows.append((model, f"peak of memory at {tokens} tokens", "this system does not tell it"))
    return pd.DataFrame(rows, columns=["model", "what", "reason"])


def published_frame() -> pd.DataFrame:
    """The paper's seconds: variant, tokens, seconds, half_width (of the 95 % interval)."""
    rows = published("efficiency").query("task != 'all'")
    rows = rows.assign(tokens=rows["task"].str.removesuffix(" tokens").astype(int))
    table = rows.pivot_table(index=["method", "tokens"], columns="metric", values="value").reset_index()
    table = table.rename(columns={"method": "variant", "seconds_half_width": "half_width"})
    return table[["variant", "tokens", "seconds", "half_width"]]


def published_saved() -> pd.Series:
    """The share of time that the paper's seconds save, by number of tokens."""
    seconds = published_frame().pivot_table(index="tokens", columns="variant", values="seconds")
    return 1 - seconds[HARP] / seconds[DENSE]
