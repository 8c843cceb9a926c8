"""Which cells a run stores, known before anything runs: from the profile and configs, without weights or network."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from harp_lib import paths
from harp_lib.measure.tiny import FAMILIES, SHAPE, VOCABULARY

NOTEBOOK_OF = {
    "theory": "01",
    "similarity": "01",
    "norm_change": "02",
    "alpha_search": "03",
    "baselines": "04",
    "main_tables": "05",
    "ablations": "06",
    "longbench": "07",
    "efficiency": "08",
}
"""Experiment → the notebook that stores all of its cells, in the order in which they run."""
CHECKS = ("draws", "one-hot", "uniformity-sweep", "norm-sweep", "counterexamples")  # of theory, which need no model
WIKITEXT_PAGES = 60  # held out, where they are on the hub: Merity et al. 2016, Table 1

Names = Iterator[tuple[str, str]]


def expected_cells(profile: dict[str, Any], experiment: str, model: str) -> list[tuple[str, str]]:
    """Method and task of every cell that an experiment stores for one model.

    Parameters
    ----------
    profile : dict
        From :func:`harp_lib.profiles.load_profile`.
    experiment : str
        A key of ``NOTEBOOK_OF``.
    model : str
        One of :func:`experiment_models`.

    Returns
    -------
    list of (str, str)
        Each once. What depends on the number of layers is left out of a model whose :func:`model_config` is not known:
        the layer ranges of ``baselines``, and all measurements of ``efficiency``. Where too few held-out documents are
        long enough, ``ablations`` stores fewer cells than are listed.

    Raises
    ------
    ValueError
        For an unknown experiment.
    """
    _check(experiment)
    return list(dict.fromkeys(_CELLS[experiment](profile, model)))


def experiment_models(profile: dict[str, Any], experiment: str) -> list[str]:
    """The models that an experiment's cells are stored under.

    They are the profile's; for the α search its further ones too, for ``efficiency`` its shapes unless models were
    named in place of the profile's own, and for ``theory`` a name that is no model's.
    """
    _check(experiment)
    if experiment == "theory":
        from harp_lib.experiments.theory_study import SYNTHETIC

        return [SYNTHETIC]
    if experiment == "alpha_search":
        return [*profile["models"], *profile["alpha_search"]["extra_models"]]
    if experiment == "efficiency" and not _models_were_named(profile):
        return profile["efficiency"]["shapes"] or profile["models"]
    return profile["models"]


def model_config(model: str) -> dict[str, Any] | None:
    """What a model's ``config.json`` says, where it is at hand; None where it is not.

    Looked for where :func:`harp_lib.load_model` would find the model, and in ``data/configs`` under the paper's
    spelling or the last part of a name.
    """
    if model in FAMILIES:
        model_type, particulars = FAMILIES[model]
        return {"model_type": model_type, "vocab_size": VOCABULARY} | SHAPE | particulars
    from harp_lib.accounting import PAPER_MODELS

    known = paths.CONFIGS / f"{PAPER_MODELS.get(model, Path(model).name)}.json"
    for file in (paths.MODELS / model / "config.json", Path(model) / "config.json", known):
        if file.is_file():
            config = json.loads(file.read_text(encoding="utf-8"))
            return config if "num_hidden_layers" in config else None  # a model of text and images has it elsewhere
    return None


def _check(experiment: str) -> None:
    if experiment not in NOTEBOOK_OF:
        raise ValueError(f"unknown experiment {experiment!r}; choose from {', '.join(NOTEBOOK_OF)}")


def _models_were_named(profile: dict[str, Any]) -> bool:
    """Whether :func:`harp_lib.profiles.load_profile` was given models, which also drops the further ones."""
    own = yaml.safe_load((paths.PROFILES / f"{profile['name']}.yaml").read_text(encoding="utf-8"))
    further = profile["alpha_search"]["extra_models"] != own["alpha_search"]["extra_models"]
    return further or profile["models"] != own["models"]


def _theory(profile: dict[str, Any], model: str) -> Names:
    return product(["theory"], CHECKS)


def _similarity(profile: dict[str, Any], model: str) -> Names:
    from harp_lib.experiments.similarity_study import RANDOM, TRAINED

    yield from product((TRAINED, RANDOM), profile["corpora"])
    yield from product([TRAINED], [f"contraction-{corpus}" for corpus in profile["corpora"]])
    yield from product([TRAINED], ("block-bound", "repeated-tokens"))


def _norm_change(profile: dict[str, Any], model: str) -> Names:
    from harp_lib.experiments.norm_study import PLANS

    yield from product(["dense"], profile["corpora"])
    yield from product(PLANS, ["reading"])


def _alpha_search(profile: dict[str, Any], model: str) -> Names:
    from harp_lib.experiments.alpha_study import HELD_OUT, SEARCHED

    corpora = profile["corpora"]
    yield from (("harp", f"search-{corpus}") for corpus in corpora)
    if model in profile["models"]:
        plans = ("dense", "alpha-1", "alpha-0", *(f"searched-on-{corpus}" for corpus in corpora))
        yield from product(plans, [f"{corpus}-{split}" for corpus in corpora for split in (SEARCHED, HELD_OUT)])
        yield "harp", "cost"


def _baselines(profile: dict[str, Any], model: str) -> Names:
    from harp_lib.baseline_frames import ORDER, WITHOUT_BIAS
    from harp_lib.experiments.alpha_study import HELD_OUT, SEARCHED
    from harp_lib.methods import BASELINES

    if config := model_config(model):
        for method in BASELINES:
            for window in _windows(profile, model, config, method):
                yield method, f"range-{window.start:02d}-{window.stop:02d}"
    yield from product(ORDER, ["plan"])
    first = profile["corpora"][0]
    texts = [f"{first}-{SEARCHED}", *(f"{corpus}-{HELD_OUT}" for corpus in profile["corpora"])]
    yield from product((*ORDER, WITHOUT_BIAS), texts)
    yield from product(ORDER, ["writing"])


def _windows(profile: dict[str, Any], model: str, config: dict[str, Any], method: str) -> list[range]:
    """The study's own layer ranges, of a study that has no model."""
    from harp_lib.experiments.baseline_study import BaselineStudy
    from harp_lib.profiles import num_pruned_layers

    layers = config["num_hidden_layers"]
    groups = config.get("num_key_value_heads") or config["num_attention_heads"]
    kv_groups = num_pruned_layers(profile, model, layers) * groups
    study = SimpleNamespace(
        name=model, settings=profile["baselines"], num_layers=layers, groups_per_layer=groups, kv_groups=kv_groups
    )
    return BaselineStudy.windows(study, method)


def _main_tables(profile: dict[str, Any], model: str) -> Names:
    from harp_lib.baseline_frames import ORDER

    return product(ORDER, profile["evaluation"]["tasks"])


def _longbench(profile: dict[str, Any], model: str) -> Names:
    from harp_lib.baseline_frames import ORDER

    return product(ORDER, profile["longbench"]["tasks"])


def _ablations(profile: dict[str, Any], model: str) -> Names:
    from harp_lib.experiments.ablation_study import GAIN, SHARED, SINGLE, STRATEGIES
    from harp_lib.measure.benchmarks import DISCRIMINATIVE_TASKS

    yield from product(STRATEGIES, ["selection"])
    for method, setting in ((GAIN, "gain"), (SINGLE, "single_layer")):
        wanted = profile["ablations"][setting][0]
        yield from ((method, f"document-{index:02d}") for index in range(_held_out_documents(profile, wanted)))
    yield from product((*SHARED, "top"), profile["evaluation"]["tasks"])
    others = [strategy for strategy in STRATEGIES if strategy != "top"]
    yield from product(others, [benchmark.name for benchmark in DISCRIMINATIVE_TASKS])


def _held_out_documents(profile: dict[str, Any], wanted: int | None) -> int:
    """How many documents of the first corpus are read, if all are long enough; None for as many as the α search has."""
    from harp_lib.experiments.alpha_study import HELD_OUT
    from harp_lib.measure.corpora import load_corpus

    at_hand = WIKITEXT_PAGES
    if profile["datasets"] != "hub":
        corpus = load_corpus(profile["corpora"][0], HELD_OUT, profile["datasets"])
        at_hand = sum(bool(document.strip()) for document in corpus.documents)
    limits = (wanted, profile["alpha_search"]["documents"], at_hand)
    return min(limit for limit in limits if limit is not None)


def _efficiency(profile: dict[str, Any], model: str) -> Names:
    from harp_lib.experiments.efficiency_study import ALL

    settings, config = profile["efficiency"], model_config(model)
    yield ALL, "counted"
    lengths = {"prefill": settings["prefill"], "split": settings["split"], "decode": settings["decode"]["contexts"]}
    for kind, tokens in lengths.items():
        readable = (number for number in tokens if config and number <= config["max_position_embeddings"])
        yield from ((ALL, f"{kind}-{number}") for number in readable)


_CELLS = {
    "theory": _theory,
    "similarity": _similarity,
    "norm_change": _norm_change,
    "alpha_search": _alpha_search,
    "baselines": _baselines,
    "main_tables": _main_tables,
    "ablations": _ablations,
    "longbench": _longbench,
    "efficiency": _efficiency,
}
