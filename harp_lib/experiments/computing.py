"""The jobs that compute cells before the notebooks that read them: one function for each kind."""

from collections.abc import Sequence
from typing import Any

from harp_lib.experiments import ablation_study, alpha_study, score_study
from harp_lib.experiments.ablation_study import AblationStudy
from harp_lib.experiments.alpha_study import AlphaStudy
from harp_lib.experiments.score_study import ScoreStudy, method_plans, release_memory
from harp_lib.measure.models import load_model
from harp_lib.results import ResultStore


def search(profile: dict[str, Any], seed: int, model: str) -> None:
    """Algorithm 1 on every corpus."""
    _alpha_study(profile, model)[0].search()


def plans(profile: dict[str, Any], seed: int, model: str) -> None:
    """The tuned layer range of every baseline, and the plan of every method."""
    method_plans(model, profile, seed)


def layers(profile: dict[str, Any], seed: int, model: str) -> None:
    """The ablations that need no benchmark: which layers the strategies choose, and what single layers cost."""
    study = _ablation_study(profile, seed, model)
    study.gains()
    study.single_layers()


def scores(
    profile: dict[str, Any], seed: int, model: str, experiment: str, source: str, cells: Sequence[tuple[str, str]]
) -> None:
    """Scores of some methods on some tasks: ``cells`` are pairs of them, ``source`` is the job that made the plans."""
    if source == "layers":
        study = _ablation_study(profile, seed, model)
        found, digest = study.plans, study.alpha.inputs["digest"]
        del study
        release_memory()
    else:
        found, digest = method_plans(model, profile, seed)
    section = experiment if experiment == score_study.LONGBENCH else "evaluation"
    work = ScoreStudy(model, digest, profile, ResultStore(profile["name"], experiment), seed, section=section)
    work.evaluate(found, only={(method, task) for method, task in cells})


def _alpha_study(profile: dict[str, Any], model: str) -> tuple[AlphaStudy, Any]:
    dense, tokenizer = load_model(model, profile["dtype"], profile["device_map"])
    return AlphaStudy(model, dense, tokenizer, profile, ResultStore(profile["name"], alpha_study.EXPERIMENT)), tokenizer


def _ablation_study(profile: dict[str, Any], seed: int, model: str) -> AblationStudy:
    alpha, tokenizer = _alpha_study(profile, model)
    study = AblationStudy(alpha, tokenizer, profile, ResultStore(profile["name"], ablation_study.EXPERIMENT), seed)
    study.select()
    return study


JOBS = {"search": search, "plans": plans, "layers": layers, "scores": scores}
