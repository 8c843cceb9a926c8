"""Notebooks 05 to 07: every plan scored on every benchmark; other layers than the top ones; one layer at a time."""

from collections.abc import Iterable, Mapping
from typing import Any

from tqdm import tqdm

from harp_lib.accounting import head_ratio, removed_fraction
from harp_lib.experiments.job import CALIBRATION, HELD_OUT, Job, Text, described, or_failed
from harp_lib.measure.evaluation import ALL_BENCHMARKS, BENCHMARKS, DISCRIMINATIVE, Evaluator, MissingTaskError
from harp_lib.measure.text import calibration_blocks, load_corpus
from harp_lib.methods import EVALUATED
from harp_lib.methods.layer_selection import SCORED, layer_scores, lowest_layers
from harp_lib.pruning.plan import PruningPlan

STRATEGIES = ("bottom", "hessian", "similarity", "top")  # the paper's, in its order; all of them at alpha = 1
SINGLE_ALPHAS = (1.0, 0.0)  # queries and keys removed; the whole attention removed


def scores(job: Job) -> None:
    """Every method's plan on the eleven benchmarks."""
    plans = {method: job.plan(method) for method in ("dense", *EVALUATED)}
    _score(job, "main_tables", job.tasks("evaluation"), plans)


def longbench(job: Job) -> None:
    """Every method's plan on LongBench."""
    plans = {method: job.plan(method) for method in ("dense", *EVALUATED)}
    _score(job, "longbench", job.tasks("longbench"), plans, section="longbench")


def ablations(job: Job) -> None:
    """The strategies of :func:`layers`: ``top`` on all tasks, the others on discriminative ones, as in the paper.

    The dense model and HARP are notebook 05's; what it has not computed yet is computed for it.
    """
    harp = PruningPlan.value_only(job.num_layers, job.alphas(job.corpora[0]))
    tasks = job.tasks("evaluation")
    _score(job, "main_tables", tasks, {"dense": None, "harp": harp})
    plans = {}
    for strategy in STRATEGIES:
        chosen = job.read("ablations", strategy, "selection")["layers"]
        plans[strategy] = PruningPlan.value_only(job.num_layers, dict.fromkeys(chosen, 1.0))
    _score(job, "ablations", tasks, {"top": plans.pop("top")})
    _score(job, "ablations", [task for task in tasks if BENCHMARKS[task].kind == DISCRIMINATIVE], plans)


def _score(
    job: Job, store: str, tasks: Iterable[str], plans: Mapping[str, PruningPlan | None], section: str = "evaluation"
) -> None:
    """Score plans on tasks. A cell that fails says why and is shown as missing; the others go on."""
    evaluator, work = Evaluator(job.profile, job.seed, section), [(task, method) for task in tasks for method in plans]
    with tqdm(work, desc="scores", unit="cell") as bar:
        for task, method in bar:
            plan, benchmark = plans[method], ALL_BENCHMARKS[task]
            bar.set_postfix_str(f"{method}, {benchmark.title}", refresh=False)
            inputs = job.inputs | job.plan_inputs(plan)
            try:
                inputs |= evaluator.inputs(benchmark)
            except MissingTaskError as error:
                inputs |= {"task": task, "missing": str(error)}

            def compute(partial, plan=plan, benchmark=benchmark, inputs=inputs) -> dict[str, Any]:
                missing = inputs.get("missing")
                return {"failed": missing} if missing else or_failed(lambda: _result(job, evaluator, plan, benchmark))

            job.store_of(store).cell(job.name, method, task, inputs, compute)


def _result(job: Job, evaluator: Evaluator, plan: PruningPlan | None, benchmark: Any) -> dict[str, Any]:
    """The scores, and what the plan removes."""
    model, plan = job.model, plan or PruningPlan(job.num_layers, {})
    ratios = {"removed_fraction": removed_fraction(model.config, plan), "head_ratio": head_ratio(model.config, plan)}
    with job.pruned(plan):
        return evaluator.evaluate(model, job.tokenizer, benchmark) | ratios


def layers(job: Job) -> None:
    """Which layers the strategies choose, what each searched alpha brings, and what one layer alone costs."""
    first, settings = job.corpora[0], job.profile["ablations"]
    searched = job.alphas(first)
    _select(job, first, settings["calibration"])
    gain, single = (job.text(first, HELD_OUT, settings[name]) for name in ("gain", "single_layer"))
    inputs = {"alphas": {str(layer): alpha for layer, alpha in searched.items()}}
    _by_document(job, "gain", gain, inputs, lambda text: _gain(job, text, searched))
    inputs = {"alphas": SINGLE_ALPHAS, "num_layers": len(searched)}
    _by_document(job, "single-layer", single, inputs, lambda text: _single_layers(job, text))


def _select(job: Job, corpus: str, calibration: tuple[int, int]) -> None:
    """The layers of each strategy, as many as HARP prunes."""
    count, text = job.num_pruned, load_corpus(corpus, CALIBRATION, job.profile["datasets"])
    for strategy in tqdm(STRATEGIES, desc="layer selection", unit="strategy"):

        def compute(strategy=strategy) -> dict[str, Any]:
            if strategy not in SCORED:
                first = 0 if strategy == "bottom" else job.num_layers - count
                return {"layers": list(range(first, first + count)), "scores": None}
            blocks = calibration_blocks(text, job.tokenizer, *calibration, seed=job.seed)
            found = layer_scores(strategy, job.model, blocks)
            return {"layers": lowest_layers(found, count), "scores": found}

        inputs = job.inputs | {"num_layers": count, "total": job.num_layers}
        if strategy in SCORED:
            inputs |= {"calibration": calibration, "seed": job.seed} | described(text)
        job.cell(strategy, "selection", inputs, compute)


def _by_document(job: Job, method: str, text: Text, inputs: dict[str, Any], compute: Any) -> None:
    """One cell for each document of a text."""
    for index in tqdm(range(len(text.documents)), desc=method, unit="document"):
        wanted = text.inputs | {"document": index} | inputs
        job.cell(method, f"document-{index:02d}", wanted, lambda index=index: compute(text[index : index + 1]))


def _gain(job: Job, text: Text, searched: Mapping[int, float]) -> dict[str, Any]:
    """Likelihood under every plan of :func:`attribution`; only the pruned layers are run again."""
    plans = {name: PruningPlan.value_only(job.num_layers, alphas) for name, alphas in attribution(searched).items()}
    nll = {name: sum(text.nll(plan)["nll"]) for name, plan in (plans | {"dense": None}).items()}
    return {"nll": nll, "tokens": sum(text.tokens)}


def attribution(searched: Mapping[int, float]) -> dict[str, dict[int, float]]:
    """Plans that tell which searched alpha brings how much: alpha by layer, for all of the pruned layers.

    ``top-<k>`` has alpha searched in the k highest layers and 1 below them, ``only-<layer>`` in this layer alone, and
    ``without-<layer>`` in all layers but this one.
    """
    order = sorted(searched, reverse=True)
    ones = dict.fromkeys(order, 1.0)
    plans = {f"top-{k}": ones | {layer: searched[layer] for layer in order[:k]} for k in range(len(order) + 1)}
    plans |= {f"only-{layer}": ones | {layer: searched[layer]} for layer in order}
    return plans | {f"without-{layer}": {**searched, layer: 1.0} for layer in order}


def _single_layers(job: Job, text: Text) -> dict[str, Any]:
    """Likelihood by alpha and layer, that layer value-only and all others dense."""
    nll: dict[str, list[float]] = {f"{alpha:g}": [] for alpha in SINGLE_ALPHAS}
    for layer in range(job.num_layers):
        for alpha in SINGLE_ALPHAS:
            found = text.nll(PruningPlan.value_only(job.num_layers, {layer: alpha}))
            nll[f"{alpha:g}"].append(sum(found["nll"]))
    return {"dense": sum(text.nll(None)["nll"]), "tokens": sum(text.tokens), **nll}
