"""Tables of notebook 04."""

from collections.abc import Iterator
from fractions import Fraction

import pandas as pd

from harp_lib.accounting import PAPER_MODELS
from harp_lib.alpha_figures import USE
from harp_lib.baseline_frames import (
    EQUAL_HEADS,
    EQUAL_PARAMETERS,
    ORDER,
    TITLE,
    cost_frame,
    perplexity_frame,
    range_frame,
    writing_frame,
)
from harp_lib.baseline_verdict import verdict
from harp_lib.experiments.alpha_study import HELD_OUT
from harp_lib.measure.corpora import TITLES
from harp_lib.measure.models import display_name
from harp_lib.methods import BASELINES, PROPERTIES
from harp_lib.paper_accounting import WAYS, ffn_ratios, paper_ratios
from harp_lib.published import published_ranges, published_scores
from harp_lib.results import Cells
from harp_lib.tables import interval, with_error


def baseline_tables(cells: Cells) -> Iterator[tuple[pd.DataFrame, str, pd.DataFrame]]:
    """Every table of the experiment, its file name, and its unrounded numbers."""
    ranges, perplexities, costs = range_frame(cells), perplexity_frame(cells), cost_frame(cells)
    yield method_properties(), "method_properties", method_properties()
    yield tuned_ranges(ranges), "baseline_ranges", ranges
    yield method_perplexity(perplexities), "baseline_perplexity", perplexities
    writing = writing_frame(cells)
    yield method_writing(writing, perplexities), "baseline_writing", writing.drop(columns="sample")
    yield method_costs(costs), "baseline_costs", costs
    yield pruning_ratios(), "pruning_ratios", paper_ratios()
    yield channel_ratios(), "ffn_ratios", ffn_ratios()
    claims = verdict(cells)
    yield claims, "baseline_verdict", claims


def method_properties() -> pd.DataFrame:
    """The paper's table "property", from what each method's code says of itself."""
    return pd.DataFrame(
        {
            "method": method.title,
            "metric": f"${method.metric}$",
            "looks at": method.looks_at,
            "calibration": method.calibration,
            "weight update": method.weight_update,
            "what goes where": method.allocation,
        }
        for method in PROPERTIES
    )


def tuned_ranges(ranges: pd.DataFrame) -> pd.DataFrame:
    """The tuned layer range of each method: the paper's models, then ours. The end is not included."""
    rows = [
        {"model": f"{model} (paper)", "method": TITLE[method], "first layer": start, "end": end, "layers": end - start}
        for model, methods in published_ranges().items()
        for method, (start, end) in methods.items()
    ]
    for (model, method), part in ranges.groupby(["model", "method"], sort=False):
        best = part[part["tuned"]].iloc[0]
        rows.append(
            {
                "model": display_name(model),
                "method": TITLE[method],
                "first layer": best["start"],
                "end": best["end"],
                "layers": best["layers"],
                "perplexity": with_error(best["perplexity"], best["error"]),
                "worst range": f"{part['perplexity'].max():.2f}",
                "ranges tried": str(len(part)),
                "documents": str(best["documents"]),
                "tokens": str(best["tokens"]),
            }
        )
    return pd.DataFrame(rows).fillna("")


def method_perplexity(perplexities: pd.DataFrame) -> pd.DataFrame:
    """Perplexity of each method with its 95 % interval, and the baselines' paired change against HARP's."""
    return pd.DataFrame(
        {
            "model": display_name(row["model"]),
            "text": TITLES[row["corpus"]],
            "use": USE[row["split"]],
            "method": TITLE[row["method"]],
            "perplexity": with_error(row["perplexity"], row["error"]),
            "95 % interval": f"{row['low']:.2f} to {row['high']:.2f}" if row["documents"] > 1 else "",
            **{
                f"against {TITLE[reference]}": interval(
                    *(row[f"{reference} {end}"] for end in ("change", "low", "high"))
                )
                if row["method"] in BASELINES
                else ""
                for reference in (EQUAL_HEADS, EQUAL_PARAMETERS)
            },
            "documents": row["documents"],
            "tokens": row["tokens"],
        }
        for row in perplexities.to_dict("records")
    )


def method_writing(writing: pd.DataFrame, perplexities: pd.DataFrame) -> pd.DataFrame:
    """How much each method repeats itself, beside its perplexity on the documents that it continues, and a sample."""
    known = perplexities[perplexities["split"] == HELD_OUT].set_index(["model", "method", "corpus"])["perplexity"]
    return pd.DataFrame(
        {
            "model": display_name(row.model),
            "method": TITLE[row.method],
            "perplexity": f"{known[row.model, row.method, row.corpus]:.2f}",
            "repetition": f"{100 * row.repetition:.0f} %",
            "95 % interval": f"{100 * max(row.low, 0):.0f} to {100 * min(row.high, 1):.0f} %" if row.texts > 1 else "",
            "continuations": row.texts,
            "tokens": row.tokens,
            "the first continuation begins": one_line(row.sample),
        }
        for row in writing.itertuples()
    )


def one_line(text: str, width: int = 70) -> str:
    """The beginning of a text in one line that can stand in a cell of a Markdown table."""
    line = " ".join(text.split())[:width]
    return "".join(character if character.isalnum() or character in " .,:;()'=-" else "·" for character in line)


def published_averages() -> pd.DataFrame:
    """The average accuracy of each method on each kind of task, as the paper prints it, in percent."""
    rows = []
    for table in ("generation", "discriminative"):
        for model in PAPER_MODELS:
            scores = published_scores(table, model)["Average"]
            found = {TITLE[method]: f"{scores[method]:.2f}" if method in scores else "" for method in ORDER}
            rows.append({"model": f"{model} (paper)", "tasks": table, **found})
    return pd.DataFrame(rows)


def method_costs(costs: pd.DataFrame) -> pd.DataFrame:
    """Parameters, cache and floating-point operations of each pruned model, and what its plan took to find."""
    rows = []
    for model, part in costs.groupby("model", sort=False):
        dense = part[part["method"] == "dense"].iloc[0]
        for row in part.itertuples():
            rows.append(
                {
                    "model": display_name(model),
                    "method": TITLE[row.method],
                    "heads removed": str(Fraction(row.head_ratio).limit_denominator(1000)),
                    "decoder parameters removed": f"{100 * row.removed_fraction:.2f} %",
                    "all parameters": f"{row.parameters / 1e6:.2f} million",
                    f"KV cache, bytes a token ({row.dtype.removeprefix('torch.')})": f"{row.kv_bytes_per_token:,}",
                    f"prefill of {row.tokens:,} tokens": _flops(row.prefill_flops, dense.prefill_flops),
                    f"a token after {row.tokens:,}": _flops(row.decode_flops, dense.decode_flops),
                    "calibration tokens": f"{row.calibration_tokens:,}" if row.calibration_tokens else "",
                    "searched tokens": f"{row.searched_tokens:,}" if row.searched_tokens else "",
                    "seconds for the plan": "" if row.method == "dense" else f"{row.seconds:.1f}",
                    "seconds for all ranges": f"{row.tuning_seconds:.1f}" if row.method in BASELINES else "",
                }
            )
    return pd.DataFrame(rows).fillna("")


def _flops(count: int, dense: int) -> str:
    change = "" if count == dense else f" ({100 * (count / dense - 1):+.1f} %)"
    unit, name = (1e9, "GFLOP") if dense >= 1e9 else (1e6, "MFLOP")
    return f"{count / unit:,.2f} {name}{change}"


def pruning_ratios() -> pd.DataFrame:
    """The paper's "Parameter Pruning Ratio" of each model, computed from the configs, beside what is printed."""
    titles = {"baselines": "baselines"} | {way: TITLE[way] for way in WAYS if way in TITLE}
    return pd.DataFrame(
        {
            "model": row.model,
            "way to prune": titles[row.method],
            "groups removed": row.kv_groups,
            "computed": f"{row.percent:.4f} %",
            "to the printed digit": f"{row.rounded:.1f} %",
            "printed": f"{row.printed:.1f} %",
            "match": "yes" if row.matches else "no",
        }
        for row in paper_ratios().itertuples()
    )


def channel_ratios() -> pd.DataFrame:
    """The share of FFN channels that HARP+FLAP has to remove, computed, beside that of the official runs."""
    return pd.DataFrame(
        {
            "model": row.model,
            "channels": f"{row.channels:,}",
            "computed share": f"{row.ratio:.5f}",
            "official share": f"{row.official:.5f}",
            "official − computed": f"{round(row.difference, 5) + 0.0:+.5f}",
        }
        for row in ffn_ratios().itertuples()
    )
