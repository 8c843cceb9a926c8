"""The units by the studies of before, until each module has its own."""

from contextlib import contextmanager

from harp_lib import results
from harp_lib.experiments import UNITS, models_of


@contextmanager
def _stores(units, force):
    """Every store that a study makes is finished at the end."""
    made = []

    class Store(results.ResultStore):
        def __init__(self, profile, experiment, root=None, force=force):
            mine = force and any(UNITS[unit].store == experiment for unit in units)
            super().__init__(profile, experiment, root, mine)
            made.append(self)

    from harp_lib.experiments import score_study

    before = score_study.ResultStore
    score_study.ResultStore = Store
    try:
        yield made, Store
    finally:
        score_study.ResultStore = before


def run(units, wanted, profile, seed, force):
    before = dict(results.ResultStore.all_counts)
    with _stores(units, force) as (made, store):
        for unit in wanted:
            for model in models_of(profile, unit):
                _do(unit, profile, model, seed, None, store)
    by_experiment = {}
    for store in made:
        by_experiment.setdefault(store.folder, []).append(store)
    for same in by_experiment.values():
        for other in same[:-1]:
            same[-1].cells |= other.cells
        same[-1].finish()
    counts = {key: n - before.get(key, 0) for key, n in results.ResultStore.all_counts.items()}
    failed = f", {counts['failed']} failed" if counts.get("failed") else ""
    print(f"{counts.get('computed', 0)} cells computed, {counts.get('read', 0)} read{failed}")


def compute(unit, profile, model, seed, part):
    before = dict(results.ResultStore.all_counts)
    with _stores((), False) as (_, store):
        _do(unit, profile, model, seed, part, store)
    counts = results.ResultStore.all_counts
    return {key: counts[key] - before.get(key, 0) for key in ("computed", "read", "failed")}


def _do(unit, profile, model, seed, part, store):
    globals()[f"_{unit}"](profile, model, seed, part, lambda name: store(profile["name"], name))


def _theory(profile, model, seed, part, store):
    from harp_lib.experiments.theory_study import check_theory

    check_theory(store("theory"), profile["theory"], seed)


def _similarity(profile, model, seed, part, store):
    from harp_lib.experiments.similarity_study import study_similarity
    from harp_lib.experiments.theory_study import load_texts
    from harp_lib.measure.models import load_model

    dense, tokenizer = load_model(model, profile["dtype"], profile["device_map"])
    study_similarity(model, dense, load_texts(profile, tokenizer), profile["theory"], seed, store("similarity"))


def _norms(profile, model, seed, part, store):
    from harp_lib.experiments.norm_study import study_norms
    from harp_lib.experiments.theory_study import load_texts
    from harp_lib.measure.models import load_model

    dense, tokenizer = load_model(model, profile["dtype"], profile["device_map"])
    study_norms(model, dense, tokenizer, load_texts(profile, tokenizer), profile, store("norm_change"))


def _study(profile, model, store):
    from harp_lib.experiments.alpha_study import AlphaStudy
    from harp_lib.measure.models import load_model

    dense, tokenizer = load_model(model, profile["dtype"], profile["device_map"])
    return AlphaStudy(model, dense, tokenizer, profile, store("alpha_search")), tokenizer


def _search(profile, model, seed, part, store):
    _study(profile, model, store)[0].search()


def _alpha(profile, model, seed, part, store):
    study = _study(profile, model, store)[0]
    study.search()
    study.perplexities()
    study.costs()


def _baseline(profile, model, seed, store):
    from harp_lib.experiments.baseline_study import BaselineStudy

    alpha, tokenizer = _study(profile, model, store)
    study = BaselineStudy(alpha, tokenizer, profile, store("baselines"), seed)
    study.tune()
    study.plan()
    return study


def _plans(profile, model, seed, part, store):
    _baseline(profile, model, seed, store)


def _baselines(profile, model, seed, part, store):
    study = _baseline(profile, model, seed, store)
    study.evaluate()
    study.write()


def _part(tasks, part):
    return list(tasks) if part is None else list(tasks)[part[0] :: part[1]]


def _score(profile, model, seed, part, store, section):
    from harp_lib.experiments.score_study import ScoreStudy, method_plans

    plans, digest = method_plans(model, profile, seed)
    study = ScoreStudy(
        model, digest, profile, store("main_tables" if section == "evaluation" else section), seed, section=section
    )
    study.evaluate(plans, _part(profile[section]["tasks"], part))


def _scores(profile, model, seed, part, store):
    _score(profile, model, seed, part, store, "evaluation")


def _longbench(profile, model, seed, part, store):
    _score(profile, model, seed, part, store, "longbench")


def _ablation(profile, model, seed, store):
    from harp_lib.experiments.ablation_study import AblationStudy

    alpha, tokenizer = _study(profile, model, store)
    study = AblationStudy(alpha, tokenizer, profile, store("ablations"), seed)
    study.select()
    return study


def _layers(profile, model, seed, part, store):
    study = _ablation(profile, model, seed, store)
    study.gains()
    study.single_layers()


def _ablations(profile, model, seed, part, store):
    from harp_lib.experiments.ablation_study import score

    study = _ablation(profile, model, seed, store)
    score(model, study.alpha.inputs["digest"], study.plans, profile, store("ablations"), store("main_tables"), seed)


def _efficiency(profile, model, seed, part, store):
    from harp_lib.experiments.efficiency_study import EfficiencyStudy

    EfficiencyStudy(model, profile, store("efficiency"), seed).measure()
