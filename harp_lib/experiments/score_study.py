"""The experiments of notebooks 05 and 07: every method's plan, scored on every benchmark."""

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from tqdm import tqdm

from harp_lib.accounting import head_ratio, removed_fraction
from harp_lib.experiments.alpha_study import EXPERIMENT as ALPHA
from harp_lib.experiments.alpha_study import AlphaStudy
from harp_lib.experiments.baseline_study import EXPERIMENT as BASELINES
from harp_lib.experiments.baseline_study import BaselineStudy
from harp_lib.measure.benchmarks import ALL_BENCHMARKS, MissingTaskError
from harp_lib.measure.evaluation import Evaluator
from harp_lib.measure.models import load_model
from harp_lib.measure.workers import devices_for, run_jobs
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.results import ResultStore

EXPERIMENT = "main_tables"
LONGBENCH = "longbench"  # the experiment, and its section of the profile
Job = tuple[str, dict | None, str]  # method, plan, benchmark


def method_plans(name: str, profile: dict[str, Any], seed: int = 0) -> tuple[dict[str, PruningPlan | None], str]:
    """Every method's plan for a model, read from notebooks 03 and 04 where these have run, found now where not.

    Returns
    -------
    plans : dict
        By method; None for the dense model.
    digest : str
        Of the model's weights. The model itself is let go: scoring loads one, or several, of its own.
    """
    model, tokenizer = load_model(name, profile["dtype"], profile["device_map"])
    alpha = AlphaStudy(name, model, tokenizer, profile, ResultStore(profile["name"], ALPHA))
    study = BaselineStudy(alpha, tokenizer, profile, ResultStore(profile["name"], BASELINES), seed)
    study.tune()
    plans, digest = study.plan(), alpha.inputs["digest"]
    del model, alpha, study
    release_memory()
    return plans, digest


def release_memory() -> None:
    """Give the memory of models that are gone back to the GPU, for the processes that score."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class ScoreStudy:
    """Scores of one model under several plans.

    Parameters
    ----------
    name, digest : str
        The model as :func:`harp_lib.load_model` knows it, and the digest of its weights.
    profile : dict
        From :func:`harp_lib.profiles.load_profile`.
    store : ResultStore
        Takes a cell for each method and benchmark.
    seed : int
        Chooses the few-shot examples.
    scorer : Scorer, optional
        Of another study of the same model, so that one copy of the model serves both.
    section : str
        Of the profile, ``evaluation`` or ``longbench``: says which tasks, how, and with how many processes.
    """

    def __init__(
        self,
        name: str,
        digest: str,
        profile: dict[str, Any],
        store: ResultStore,
        seed: int = 0,
        scorer: "Scorer | None" = None,
        section: str = "evaluation",
    ) -> None:
        self.name, self.profile, self.store, self.seed = name, profile, store, seed
        self.section, self.settings = section, profile[section]
        self.model_inputs = {"model": name, "digest": digest, "dtype": profile["dtype"]}
        self.work = scorer or Scorer(name, profile, seed, section)

    def evaluate(
        self,
        plans: Mapping[str, PruningPlan | None],
        tasks: Sequence[str] | None = None,
        only: Collection[tuple[str, str]] | None = None,
    ) -> None:
        """Score every plan on every task (default: all of the profile), or ``only`` some pairs of method and task.

        None is the dense model. A cell that fails says why and is shown as missing; the others go on.
        """
        jobs = [(method, plan, task) for task in tasks or self.settings["tasks"] for method, plan in plans.items()]
        jobs = [(method, plan, task) for method, plan, task in jobs if only is None or (method, task) in only]
        wanted = {(method, task): self.inputs(plan, task) for method, plan, task in jobs}
        devices = devices_for(self.settings["workers"])
        pending = [
            (method, plan and plan.to_dict(), task)
            for method, plan, task in jobs
            if not self.store.has(self.name, method, task, wanted[method, task])
        ]
        with tqdm(total=len(jobs), desc="scores", unit="cell") as bar:

            def keep(method: str, task: str, compute: Callable, seconds: float | None = None) -> None:
                bar.set_postfix_str(f"{method}, {ALL_BENCHMARKS[task].title}")
                self.store.cell(self.name, method, task, wanted[method, task], compute, seconds)
                bar.update()

            if len(devices) > 1 and pending:
                arguments = (self.name, self.profile, self.seed, self.section)
                for (method, _, task), result, seconds in run_jobs(pending, Scorer, arguments, devices):
                    keep(method, task, lambda partial, result=result: result, seconds)
                done = {(method, task) for method, _, task in pending}
                jobs = [job for job in jobs if (job[0], job[2]) not in done]
            for method, plan, task in jobs:
                job = (method, plan and plan.to_dict(), task)
                keep(method, task, lambda partial, job=job: self.work(job))

    def inputs(self, plan: PruningPlan | None, task: str) -> dict[str, Any]:
        """What a cell depends on."""
        try:
            benchmark = self.work.evaluator.inputs(ALL_BENCHMARKS[task])
        except MissingTaskError as error:
            benchmark = {"task": task, "missing": str(error)}
        return self.model_inputs | {"plan": plan and plan.digest} | benchmark


class Scorer:
    """Scores plans of one model, which is loaded when the first score is wanted."""

    def __init__(self, name: str, profile: dict[str, Any], seed: int, section: str = "evaluation") -> None:
        self.name, self.model = name, None
        self.dtype, self.device_map = profile["dtype"], profile["device_map"]
        self.evaluator = Evaluator(profile, seed, section)

    def __call__(self, job: Job) -> dict[str, Any]:
        """The scores and what the plan removes, or ``{"failed": reason}``."""
        try:
            return self.score(*job[1:])
        except MissingTaskError as error:
            return {"failed": str(error)}
        except torch.AcceleratorError:  # the device is lost to this process; another one, or the next run, goes on
            raise
        except Exception as error:  # out of memory, a hub that does not answer: the other cells go on
            release_memory()
            return {"failed": f"{type(error).__name__}: {error}".strip().splitlines()[0]}

    def score(self, stored: dict | None, task: str) -> dict[str, Any]:
        if self.model is None:
            self.model, self.tokenizer = load_model(self.name, self.dtype, self.device_map)
        config = self.model.config
        plan = PruningPlan.from_dict(stored) if stored else PruningPlan(config.num_hidden_layers, {})
        ratios = {"removed_fraction": removed_fraction(config, plan), "head_ratio": head_ratio(config, plan)}
        with temporarily_pruned(self.model, plan):
            return self.evaluator.evaluate(self.model, self.tokenizer, ALL_BENCHMARKS[task]) | ratios
