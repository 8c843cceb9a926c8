"""The cells of notebook 04 as tidy frames: ranges, what goes where, perplexities, costs."""

from collections import Counter

import pandas as pd

from harp_lib.experiments.alpha_study import SEARCHED
from harp_lib.methods import BASELINES, METHODS, PROPERTIES
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import Cells
from harp_lib.statistics import mean_interval, paired_change, perplexity_estimate, perplexity_interval

ORDER = ("dense", *METHODS)
TITLE = {"dense": "dense", **{method.name: method.title for method in PROPERTIES}}
"""What tables and figures call a method."""
WITHOUT_BIAS = "flap-without-bias"  # FLAP's plan without its compensation, read beside the methods
EQUAL_HEADS, EQUAL_PARAMETERS = "harp", "harp+flap"
"""What a baseline is compared with: HARP loses as many query and key heads, HARP+FLAP as many parameters."""


def range_frame(cells: Cells) -> pd.DataFrame:
    """Perplexity of every layer range that was tried.

    Columns: model, method, layers (how many), start, end (not included), perplexity, error, documents, tokens, and
    ``tuned``: whether the range is the method's best.
    """
    rows = []
    for (model, method, task), cell in cells.items():
        if task.startswith("range-"):
            result, (start, end) = cell["result"], cell["inputs"]["layers"]
            estimate = perplexity_estimate(result["nll"], result["tokens"])
            rows.append((model, method, end - start, start, end, *estimate, len(result["nll"]), sum(result["tokens"])))
    columns = ["model", "method", "layers", "start", "end", "perplexity", "error", "documents", "tokens"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["tuned"] = False
    frame.loc[frame.groupby(["model", "method"])["perplexity"].idxmin(), "tuned"] = True
    return frame


def references(cells: Cells, model: str) -> dict[str, float]:
    """Perplexity of the dense model and of HARP on the documents that ranges are tuned on."""
    window = next(cell for (name, _, task), cell in cells.items() if name == model and task.startswith("range-"))
    corpus, count = window["inputs"]["corpus"], window["inputs"]["documents"]
    read = {method: cells[model, method, f"{corpus}-{SEARCHED}"]["result"] for method in ("dense", EQUAL_HEADS)}
    return {
        method: perplexity_estimate(result["nll"][:count], result["tokens"][:count]).value
        for method, result in read.items()
    }


def plans(cells: Cells) -> dict[tuple[str, str], PruningPlan]:
    """The plan of each model and method, in the paper's order of methods."""
    found = {
        (model, method): PruningPlan.from_dict(cell["result"]["plan"])
        for (model, method, task), cell in cells.items()
        if task == "plan" and cell["result"]["plan"]
    }
    models = list(dict.fromkeys(model for model, _ in found))
    return dict(sorted(found.items(), key=lambda item: (models.index(item[0][0]), ORDER.index(item[0][1]))))


def group_frame(cells: Cells) -> pd.DataFrame:
    """What becomes of every key/value group: model, method, layer, group, state, alpha.

    ``state`` is kept, removed (with its queries, values and columns of W_O) or value-only (queries and keys are gone).
    ``channels`` is the share of the layer's FFN channels that goes.
    """
    rows = []
    for (model, method), plan in plans(cells).items():
        shape = cells[model, method, "plan"]["result"]
        for layer in range(plan.num_layers):
            lost = plan.layers.get(layer)
            channels = len(lost.removed_channels) / shape["ffn_channels"] if lost else 0.0
            for group in range(shape["groups_per_layer"]):
                state, alpha = "kept", None
                if lost and lost.alpha is not None:
                    state, alpha = ("removed" if lost.alpha == 0 else "value-only"), lost.alpha
                elif lost and group in lost.removed_groups:
                    state = "removed"
                rows.append((model, method, layer, group, state, alpha, channels))
    return pd.DataFrame(rows, columns=["model", "method", "layer", "group", "state", "alpha", "channels"])


def perplexity_frame(cells: Cells) -> pd.DataFrame:
    """Perplexity of every method on every text, with its standard error and 95 % interval over documents.

    For each baseline also its change against HARP and against HARP+FLAP, paired by document, with 95 % interval:
    columns ``<reference> change``, ``<reference> low``, ``<reference> high``.
    """
    rows = []
    for (model, method, task), cell in cells.items():
        if method not in ORDER or "nll" not in cell["result"] or task.startswith("range-"):
            continue
        corpus, split = task.rsplit("-", 1)
        result = cell["result"]
        nll, tokens = result["nll"], result["tokens"]
        value, error = perplexity_estimate(nll, tokens)
        row = {"model": model, "method": method, "corpus": corpus, "split": split, "perplexity": value, "error": error}
        _, row["low"], row["high"] = perplexity_interval(nll, tokens)
        row |= {"documents": len(nll), "tokens": sum(tokens)}
        for reference in (EQUAL_HEADS, EQUAL_PARAMETERS) if method in BASELINES else ():
            change, low, high = paired_change(cells[model, reference, task]["result"]["nll"], nll, tokens)
            row |= {f"{reference} change": change, f"{reference} low": low, f"{reference} high": high}
        rows.append(row)
    return ordered(pd.DataFrame(rows), "corpus", "split")


def bias_frame(cells: Cells) -> pd.DataFrame:
    """What leaving FLAP's bias out does to perplexity, paired by document: model, corpus, split, change, low, high."""
    rows = []
    for (model, method, task), cell in cells.items():
        if method == WITHOUT_BIAS:
            corpus, split = task.rsplit("-", 1)
            compensated, result = cells[model, "flap", task]["result"], cell["result"]
            rows.append((model, corpus, split, *paired_change(compensated["nll"], result["nll"], result["tokens"])))
    return pd.DataFrame(rows, columns=["model", "corpus", "split", "change", "low", "high"])


def writing_frame(cells: Cells) -> pd.DataFrame:
    """How much each method repeats itself in greedy writing.

    Columns: model, method, corpus, repetition, low, high, texts, tokens, sample (one continuation). Repetition is the
    share of 4-grams of tokens that stood in the same continuation before (Welleck et al., 2020, "seq-rep-4"): the mean
    over continuations and its 95 % interval.
    """
    rows = []
    for (model, method, task), cell in cells.items():
        if task == "writing":
            written = cell["result"]["ids"]
            shares = mean_interval([repetition(ids) for ids in written])
            row = (model, method, cell["inputs"]["corpus"], *shares, len(written), sum(map(len, written)))
            rows.append((*row, cell["result"]["texts"][0]))
    columns = ["model", "method", "corpus", "repetition", "low", "high", "texts", "tokens", "sample"]
    return ordered(pd.DataFrame(rows, columns=columns))


def repetition(ids: list[int], width: int = 4) -> float:
    """Share of the n-grams of ``width`` tokens that are not the first of their kind."""
    grams = [tuple(ids[start : start + width]) for start in range(len(ids) - width + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def cost_frame(cells: Cells) -> pd.DataFrame:
    """What each pruned model costs, counted, and what finding its plan took, measured.

    Columns: model, method, parameters, removed_fraction, head_ratio, kv_bytes_per_token, prefill_flops, decode_flops,
    tokens (at which these are counted), calibration_tokens, searched_tokens, seconds (for statistics, the search for
    alpha and the plan), tuning_seconds (for all layer ranges).
    """
    tuning = Counter()
    for (model, method, task), cell in cells.items():
        if task.startswith("range-"):
            tuning[model, method] += cell["seconds"]
    rows = [
        {"model": model, "method": method, "tuning_seconds": tuning[model, method], "dtype": cell["inputs"]["dtype"]}
        | {name: value for name, value in cell["result"].items() if name != "plan"}
        for (model, method, task), cell in cells.items()
        if task == "plan"
    ]
    return ordered(pd.DataFrame(rows))


def ordered(frame: pd.DataFrame, *between: str) -> pd.DataFrame:
    """Rows by model and then by ``between``, both as they were studied, then by method, in the paper's order."""
    ranks = pd.DataFrame({"model": pd.factorize(frame["model"])[0], "method": frame["method"].map(ORDER.index)})
    for column in between:
        ranks[column] = pd.factorize(frame[column])[0]
    index = ranks.sort_values(["model", *between, "method"], kind="stable").index
    return frame.loc[index].reset_index(drop=True)
