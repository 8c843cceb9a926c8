"""What the paper prints about numbers and benchmarks, checked against its own tables, configs and lm-eval's files."""

from collections.abc import Iterator

import pandas as pd
import torch
import yaml
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm

from harp_lib.accounting import paper_configs
from harp_lib.alpha_verdict import trend
from harp_lib.baseline_frames import EQUAL_PARAMETERS, TITLE
from harp_lib.baseline_verdict import FAILS, HOLDS
from harp_lib.claims import CLEAR_TREND
from harp_lib.counted_costs import question_tokens
from harp_lib.measure.benchmarks import BENCHMARKS, LONGBENCH, official_tasks
from harp_lib.measure.models import display_name
from harp_lib.methods import BASELINES
from harp_lib.methods.alpha_search import ALPHA_GRID
from harp_lib.pruning.plan import PruningPlan
from harp_lib.published import published, published_alphas, published_scores
from harp_lib.results import Cells

Row = tuple[str, str, str, str]  # claim, model, evidence, verdict

COLUMNS = ["claim", "model", "evidence", "verdict"]
RISING = ("LLaMA3.1-8B", "Mistral-7B-v0.3", "Qwen2-7B")  # of which the paper says that alpha rises
STRICT = "strict-match"
DESCRIBED = ("Long-dialogue History Understanding", "Long Structured Data Understanding")  # by the appendix


def print_checks() -> pd.DataFrame:
    """Statements that need no run of a model: claim, model, evidence, verdict."""
    rows = [*_alpha_rows(), _search_row(), _dense_row(), _norm_row(), *_generation_rows(), _filter_row()]
    rows += [_questions_row(), *_longbench_score_rows(), _longbench_row()]
    return pd.DataFrame(rows, columns=COLUMNS)


def flap_updates(cells: Cells) -> pd.DataFrame:
    """Table "property" on FLAP, judged by the plans of notebook 04: claim, model, evidence, verdict."""
    rows = []
    for (model, method, task), cell in cells.items():
        if (method, task) == ("flap", "plan"):
            layers = PruningPlan.from_dict(cell["result"]["plan"]).layers.values()
            biased = sum(layer.group_means is not None for layer in layers)
            evidence = (
                f"its plan for {display_name(model)} prunes {len(layers)} layers and adds a bias to {biased} of them"
            )
            rows.append(("FLAP updates no weights", TITLE["flap"], evidence, FAILS if biased else HOLDS))
    return pd.DataFrame(rows, columns=COLUMNS)


def _alpha_rows() -> Iterator[Row]:
    alphas = published_alphas()
    for model in RISING:
        rho = trend(alphas[model])
        verdict = HOLDS if float(rho) >= CLEAR_TREND else FAILS
        yield "the printed α increase with the layer index", f"{model} (paper)", f"rank correlation {rho}", verdict


def _search_row() -> Row:
    """Section "Cost analysis" against Algorithm 1 and the text about its search."""
    cost = published("search_cost").query("method == 'harp'").set_index(["task", "metric"])["value"]
    layers, printed, passes = (int(cost["all", name]) for name in ("layers", "candidates", "forward_passes"))
    documents, evaluations = (int(cost["WikiText", name]) for name in ("documents", "evaluations"))
    values = len(ALPHA_GRID)
    evidence = (
        f"Algorithm 1 tries {values} values, so that {layers} layers take {layers * values} passes and not {passes}; "
        f"the printed {evaluations:,} evaluations are {documents} documents × {layers} layers × "
        f"{evaluations / documents / layers:g} values"
    )
    right = values == printed and evaluations == documents * passes
    return "K = 10 candidates, 80 forward passes", "LLaMA3.1-8B (paper)", evidence, HOLDS if right else FAILS


def _dense_row() -> Row:
    ratios = published("generation").query("method == 'dense' and metric == 'head_ratio'")
    wrong = ratios[ratios["value"] != 0]
    said = [f"0 % is printed for {len(ratios) - len(wrong)} of {len(ratios)} models"]
    said += [f"{100 * row.value:g} % for {row.model}" for row in wrong.itertuples()]
    verdict = HOLDS if wrong.empty else FAILS
    return "the dense models have lost no heads", "the paper's four", ", ".join(said), verdict


def _norm_row() -> Row:
    """Gemma-2 normalises what leaves W_O, and a norm undoes a factor: seen on random rows of its width."""
    config = paper_configs()["Gemma2-9B"]
    norm = Gemma2RMSNorm(config.hidden_size, config.rms_norm_eps)
    branch = torch.randn(64, config.hidden_size, generator=torch.Generator().manual_seed(0))
    half, none = ((norm(alpha * branch) - norm(branch)).abs().max().item() for alpha in (0.5, 0))
    evidence = (
        f"α before its norm changes what leaves the norm by at most {half:.0e} if it is 0.5, {none:.1f} if it is 0"
    )
    claim = "α in front of W_V W_O reaches the residual stream of Gemma2-9B"
    return claim, "Gemma2-9B", evidence, FAILS if half < 1e-3 else HOLDS


def _printed_leads(table: str) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """By model: how many baselines a table has, and for each task the score of HARP+FLAP and the best of theirs."""
    for model in published(table)["model"].unique():
        scores = published_scores(table, model).drop(columns="Average", errors="ignore")
        baselines = scores.loc[scores.index.intersection(BASELINES)]
        leads = {"ours": scores.loc[EQUAL_PARAMETERS], "best": baselines.max(), "whose": baselines.idxmax()}
        yield f"{model} (paper)", len(baselines), pd.DataFrame(leads)


def _generation_rows() -> Iterator[Row]:
    claim = "the printed HARP+FLAP is ahead of every printed baseline on each generation task"
    for model, printed, leads in _printed_leads("generation"):
        behind = leads[leads["ours"] <= leads["best"]]
        said = [f"ahead of the {printed} printed baselines on {len(leads) - len(behind)} of {len(leads)} tasks"]
        for row in behind.itertuples():
            said.append(f"{row.best:.2f} for {TITLE[row.whose]} on {row.Index}, {row.ours:.2f} for HARP+FLAP")
        yield claim, model, "; ".join(said), HOLDS if behind.empty else FAILS


def _longbench_score_rows() -> Iterator[Row]:
    claim = "the printed HARP+FLAP is ahead of every printed baseline in most of LongBench"
    for model, printed, leads in _printed_leads("longbench"):
        first = int((leads["ours"] > leads["best"]).sum())
        evidence = f"ahead of the {printed} printed baselines on {first} of {len(leads)} tasks"
        yield claim, model, evidence, HOLDS if 2 * first > len(leads) else FAILS


def _questions_row() -> Row:
    statistics = published("dataset_statistics").set_index(["task", "metric"])["value"]
    printed, asked = int(statistics["MMLU", "documents"]), int(question_tokens().loc["mmlu", "questions"])
    evidence = f"{printed:,} are printed, and its test split has {asked:,}"
    return "MMLU has as many questions as are printed", "lm-eval", evidence, HOLDS if printed == asked else FAILS


def _filter_row() -> Row:
    filters = {}
    for name in ("gsm8k", "triviaqa"):
        official = yaml.safe_load((official_tasks() / BENCHMARKS[name].configs).read_text(encoding="utf-8"))
        filters[BENCHMARKS[name].title] = [each["name"] for each in official["filter_list"]]
    evidence = "; ".join(f"{title} has {' and '.join(names)}" for title, names in filters.items())
    verdict = HOLDS if all(STRICT in names for names in filters.values()) else FAILS
    return f"lm-eval scores GSM8K and TriviaQA by {STRICT}", "lm-eval", evidence, verdict


def _longbench_row() -> Row:
    """The table's tasks and the appendix' groups: in the same of lm-eval's two versions of LongBench?"""
    names = [name.removeprefix("longbench_") for name in LONGBENCH]  # those of the paper's table
    said, found = [], []
    for version in ("longbench", "longbench2"):
        folder = official_tasks() / version
        tasks = sum((folder / f"{name}.yaml").is_file() for name in names)
        groups = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in folder.glob("_longbench*.yaml")]
        described = {group.get("group_alias") for group in groups}.intersection(DESCRIBED)
        said.append(f"lm-eval's {version} has {tasks} of the {len(names)} tasks and {len(described)} of the two groups")
        found.append(tasks == len(names) and described == set(DESCRIBED))
    claim = "the tasks of the table are in the groups that the appendix describes"
    return claim, "the paper's two", "; ".join(said), HOLDS if any(found) else FAILS
