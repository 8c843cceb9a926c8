"""Tables of notebook 06."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import pandas as pd

from harp_lib.ablation_frames import (
    ALL,
    ALONE,
    MISSED,
    ORDER,
    PAPER_MODEL,
    STEP,
    cumulative_frame,
    gain_frame,
    picked_layers,
    published_picks,
    selection_frame,
    single_layer_frame,
    strategy_title,
)
from harp_lib.ablation_verdict import TASKS, nats, published_ablation, verdict
from harp_lib.experiments.ablation_study import STRATEGIES
from harp_lib.measure.benchmarks import DISCRIMINATIVE
from harp_lib.measure.models import display_name
from harp_lib.published import published_scores
from harp_lib.results import Cells
from harp_lib.score_claims import points
from harp_lib.score_frames import AVERAGE, average_frame, complete_tasks, difference, difference_frame, score_frame
from harp_lib.score_kept import KINDS
from harp_lib.score_layout import MISSING, in_bold, score_block
from harp_lib.statistics import Interval
from harp_lib.tables import interval, with_error

ALPHAS = {"top": "1", "harp": "searched"}  # the two rows of the paper's table, by method


def ablation_tables(cells: Cells) -> Iterator[tuple[pd.DataFrame, str, pd.DataFrame]]:
    """Every table of the experiment, its file name, and its unrounded numbers."""
    scores = score_frame(cells, ORDER)
    layers = selection_frame(cells)
    yield selected_layers(cells), "ablation_layers", layers
    numbers = strategy_scores(scores)
    yield layer_selection(cells, scores), "ablation_layer_selection", with_averages(numbers)
    differences = against_top(cells, scores)
    yield strategy_differences(cells, differences), "ablation_layer_selection_differences", differences
    for kind in KINDS:
        yield alpha_ablation(cells, scores, kind), f"ablation_alpha_{kind}", with_averages(alpha_scores(scores, kind))
    cumulative, gains, singles = cumulative_frame(cells), gain_frame(cells), single_layer_frame(cells)
    yield cumulative_perplexity(cumulative), "ablation_perplexity", cumulative
    yield gain_by_layer(gains), "ablation_gain", gains
    yield single_layers(singles), "ablation_single_layers", singles
    claims = verdict(cells)
    yield claims, "ablation_verdict", claims


def strategy_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """The scores that the layer selections are compared by."""
    return scores[(scores["kind"] == DISCRIMINATIVE) & scores["method"].isin(("dense", *STRATEGIES))]


def alpha_scores(scores: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The scores that alpha = 1 and searched alpha are compared by."""
    return scores[(scores["kind"] == kind) & scores["method"].isin(("dense", *ALPHAS))]


def with_averages(scores: pd.DataFrame) -> pd.DataFrame:
    """Scores on tasks of one kind, and their averages as one task more."""
    failed = scores["failed"].notna().groupby([scores["model"], scores["task"]]).transform("any")
    chance = scores[~failed].drop_duplicates(["model", "task"]).groupby("model")["chance"].mean()
    means = average_frame(scores).assign(task=AVERAGE, chance=lambda frame: frame["model"].map(chance))
    return pd.concat([scores, means], ignore_index=True)


def selected_layers(cells: Cells) -> pd.DataFrame:
    """The layers that each strategy picks: ours, then the paper's."""
    rows = []
    for model in dict.fromkeys(model for model, _, task in cells if task == "selection"):
        inputs = {strategy: cells[model, strategy, "selection"]["inputs"] for strategy in STRATEGIES}
        read = {strategy: of["calibration"] for strategy, of in inputs.items() if "calibration" in of}
        total = inputs["top"]["total"]
        rows += _picks(display_name(model), picked_layers(cells, model), total, read)
    return pd.DataFrame([*rows, *_picks(f"{PAPER_MODEL} (paper)", *published_picks(), {})]).fillna("")


def _picks(
    name: str, picked: Mapping[str, list[int]], total: int, read: Mapping[str, Sequence[int]]
) -> list[dict[str, str]]:
    rows = []
    for strategy, layers in picked.items():
        row = {"model": name, "strategy": strategy_title(strategy, len(layers)), "layers": spans(layers)}
        row["in the upper half"] = f"{sum(layer >= total / 2 for layer in layers)} of {len(layers)}"
        row["also in Top"] = f"{sum(layer >= total - len(layers) for layer in layers)} of {len(layers)}"
        if strategy in read:
            samples, length = read[strategy]
            row |= {"calibration samples": str(samples), "tokens": f"{samples * length:,}"}
        rows.append(row)
    return rows


def spans(layers: Sequence[int]) -> str:
    """Layer indices from the bottom up, neighbours as a range: ``0, 11, 28–29``."""
    runs = [[layer for _, layer in run] for _, run in groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def layer_selection(cells: Cells, scores: pd.DataFrame) -> pd.DataFrame:
    """The paper's table "layer_selection": strategies by discriminative tasks, ours above the paper's."""
    rows = []
    for model, part in strategy_scores(scores).groupby("model", sort=False):
        picked = picked_layers(cells, model)
        names = {strategy: strategy_title(strategy, len(layers)) for strategy, layers in picked.items()}
        for method, row in score_block(cells, model, part, ("dense", *STRATEGIES), STRATEGIES).items():
            layers = {"layers": spans(picked[method])} if method in picked else {}
            rows.append({"model": display_name(model), "method": names.get(method, method), **row, **layers})
    printed, (picked, _) = published_scores("layer_selection", PAPER_MODEL), published_picks()
    for method, shown in _printed(printed).items():
        row = {"model": f"{PAPER_MODEL} (paper)", "method": strategy_title(method, len(picked[method]))}
        rows.append({**row, **shown, "layers": spans(picked[method])})
    return pd.DataFrame(rows).fillna("")


def against_top(cells: Cells, scores: pd.DataFrame) -> pd.DataFrame:
    """The paired differences of the other strategies to Top, as :func:`difference_frame` has them."""
    numbers = strategy_scores(scores)
    return difference_frame(cells, numbers[numbers["method"] != "dense"], "top")


def strategy_differences(cells: Cells, differences: pd.DataFrame) -> pd.DataFrame:
    """By how many points each strategy scores higher than Top on the same questions, with 95 % intervals."""
    rows = []
    for (model, method), part in differences.groupby(["model", "method"], sort=False):
        count = len(picked_layers(cells, model)[method])
        found = {row.task: points(Interval(row.change, row.low, row.high)) for row in part.itertuples()}
        asked = part.set_index("task")["questions"].get(AVERAGE, 0)
        name = f"{strategy_title(method, count)} against {strategy_title('top', count)}"
        rows.append({"model": display_name(model), "points": name, **found, "questions": str(asked)})
    return pd.DataFrame(rows).fillna(MISSING)


def alpha_ablation(cells: Cells, scores: pd.DataFrame, kind: str) -> pd.DataFrame:
    """A block of the paper's table "ablation": alpha = 1 and searched alpha on the tasks of a kind, ours and its."""
    rows = []
    for model, part in alpha_scores(scores, kind).groupby("model", sort=False):
        block = score_block(cells, model, part, ("dense", *ALPHAS), list(ALPHAS))
        tasks = {task: [task] for task in part["task"].unique()} | {AVERAGE: complete_tasks(part)}
        leads = {task: difference(cells, model, "harp", "top", of) for task, of in tasks.items()}
        lead = {task: points(found) if found and tasks[task] else MISSING for task, found in leads.items()}
        counted = {name: block.pop(name) for name in ("questions", "at the floor")}
        block |= {"searched − 1 [95 %]": lead} | counted
        rows += [{"model": display_name(model), "α": ALPHAS.get(name, name), **row} for name, row in block.items()]
    printed = published_ablation()[[*TASKS[kind], f"Average ({kind})"]].rename(columns={f"Average ({kind})": AVERAGE})
    for alpha, shown in _printed(printed).items():
        rows.append({"model": f"{PAPER_MODEL} (paper)", "α": alpha, **shown})
    return pd.DataFrame(rows).fillna("")


def _printed(scores: pd.DataFrame) -> dict[str, dict[str, str]]:
    """A block of the paper's, the highest score of each column in bold."""
    best = scores.max()
    return {
        method: {task: in_bold(f"{x:.2f}") if x == best[task] else f"{x:.2f}" for task, x in row.items()}
        for method, row in scores.iterrows()
    }


def cumulative_perplexity(cumulative: pd.DataFrame) -> pd.DataFrame:
    """Perplexity ± standard error as alpha is searched in more and more layers, from the top down."""
    most = cumulative.groupby("model")["searched"].max()
    return pd.DataFrame(
        {
            "model": display_name(row.model),
            "α searched in": "dense" if row.searched < 0 else f"{row.searched} of {most[row.model]} layers",
            "the lowest of them": "" if row.searched < 1 else f"layer {row.layer:.0f}, α = {row.alpha:g}",
            "perplexity": with_error(row.perplexity, row.error),
            "against α = 1": "" if row.searched == 0 else interval(row.change, row.low, row.high),
            "documents": row.documents,
            "tokens": row.tokens,
        }
        for row in cumulative.itertuples()
    )


def gain_by_layer(gains: pd.DataFrame) -> pd.DataFrame:
    """What each searched alpha gains in nats per token, in three ways, with 95 % intervals."""
    titles = {STEP: "gain, after those above", ALONE: "gain, alone", MISSED: "gain, after all others"}
    rows = []
    for model, part in gains.groupby("model", sort=False):
        together = part[part["way"] == ALL].iloc[0]
        for layer, mine in part[part["way"] != ALL].groupby("layer", sort=False):
            ways = mine.set_index("way")
            row = {"model": display_name(model), "layer": f"{layer:.0f}", "α": f"{ways.loc[STEP, 'alpha']:g}"}
            row |= {title: nats(Interval(*ways.loc[way, ["gain", "low", "high"]])) for way, title in titles.items()}
            clear = together["low"] > 0  # a share of nothing says nothing
            row["share of all"] = f"{100 * ways.loc[STEP, 'share']:.0f} %" if clear else ""
            rows.append(row | {"documents": together["documents"], "tokens": together["tokens"]})
        total = nats(Interval(*together[["gain", "low", "high"]]))
        row = {"model": display_name(model), "layer": "all", "α": "", **dict.fromkeys(titles.values(), "")}
        row |= {titles[STEP]: total, "share of all": "", "documents": together["documents"]}
        rows.append(row | {"tokens": together["tokens"]})
    return pd.DataFrame(rows)


def single_layers(singles: pd.DataFrame) -> pd.DataFrame:
    """What one value-only layer costs, in nats per token, with 95 % intervals."""
    rows = []
    for (model, layer), part in singles.groupby(["model", "layer"], sort=False):
        row = {"model": display_name(model), "layer": str(layer)}
        for found in part.itertuples():
            row[f"α = {found.alpha:g}"] = nats(Interval(found.rise, found.low, found.high))
        pruned = "yes" if part["pruned"].iloc[0] else ""
        rows.append(row | {"HARP prunes it": pruned, "documents": found.documents, "tokens": found.tokens})
    return pd.DataFrame(rows)
