"""Where things are kept, what models are called, and profiles, which decide how large a run is.

The standard library only at import: the command line reads paths and names before anything is
installed.
"""

import difflib
import hashlib
import os
import re
import tomllib
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]  # where the code is
ROOT = Path(os.path.expanduser(os.environ.get("HARP_ROOT") or CHECKOUT))  # where the rest is
SHOWN_FROM = CHECKOUT if ROOT.is_relative_to(CHECKOUT) else ROOT  # where paths in messages begin
DATA = ROOT / "data"
CONFIGS = DATA / "configs"
MODELS = DATA / "models"
PAPER = DATA / "paper"
PROFILES = DATA / "profiles"
RESULTS = DATA / "results"
REFERENCE = DATA / "reference"
FIGURES = ROOT / "figures"
NOTEBOOKS = ROOT / "notebooks"
LEFT_OUT = "HARP_LEFT_OUT"  # in the environment of a run: models, by commas, that cannot be read
PAGE = "HARP_PAGE"  # in the environment of a kernel: the folder that its executed notebook goes to

REGISTRY = tomllib.loads((DATA / "models.toml").read_text(encoding="utf-8"))
NAMED_MODELS = REGISTRY["models"]  # which need no hub
HUB_ID = re.compile(r"(?!.*(?:--|\.\.))\w(?:[\w.-]*\w)?/\w(?:[\w.-]*\w)?")  # as the hub has it
NAMED_DATASETS = ("embedded", "hub")  # anything else is a folder of benchmarks

SECTIONS_WITH_TASKS = ("evaluation", "likelihoods", "longbench", "frontier")
"""Sections of a profile that list benchmarks."""


def model_name(model: str) -> str:
    """A model as a run names it: by the registry's name, a hub id or a folder's absolute path.

    Anything else is a ValueError, whose message lists what may be chosen.
    """
    folder = os.path.abspath(os.path.expanduser(model))
    if model and os.path.isfile(os.path.join(folder, "config.json")):
        return folder
    if model in NAMED_MODELS or HUB_ID.fullmatch(model):
        return model
    similar = difflib.get_close_matches(model, NAMED_MODELS, n=1)
    suggestion = f" (did you mean {similar[0]!r}?)" if similar else ""
    raise ValueError(
        f"unknown model {model!r}{suggestion}; choose from {', '.join(NAMED_MODELS)}, or give a "
        "folder with a config.json, or a hub id of the form owner/name"
    )


def data_source(datasets: str) -> str:
    """``"embedded"``, ``"hub"`` or a folder's absolute path; anything else is a ValueError."""
    if datasets in NAMED_DATASETS:
        return datasets
    folder = Path(os.path.expanduser(datasets))
    if not datasets or not folder.is_dir():
        raise ValueError(f"unknown datasets {datasets!r}; choose from embedded, hub, or a folder")
    return str(folder.absolute())


def slug(model: str) -> str:
    """A model's full name as part of a file name; no two models share it.

    The slash of a hub id becomes ``--``, and what does not go into names a dash. A folder keeps its
    last name, with a digest of its path.
    """
    if not os.path.isabs(model):
        name = model.replace("/", "--")
    else:
        path = os.path.abspath(model)
        name = f"{Path(path).name}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:6]}"
    return re.sub(r"[^\w.-]+", "-", name).strip("-")


def load_profile(
    name: str,
    models: list[str] | None = None,
    datasets: str | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Read a profile, and replace its models, its data source or its numbers of rows where given.

    Where there is no GPU, its ``dtype`` becomes ``dtype_on_cpu``, by default float32, because many
    processors emulate bfloat16, which takes 4 to 15 times as long. What ``dtype_of`` says of single
    models is kept.

    Parameters
    ----------
    name : str
        Name of the YAML file in ``data/profiles``, without its suffix.
    models : list of str, optional
        Models to use in place of the profile's, as :func:`model_name` takes them.
    datasets : str, optional
        ``"embedded"``, ``"hub"`` or a folder of benchmarks, in place of the profile's.
    limit : int, optional
        Rows of each task, in place of the profile's.

    Returns
    -------
    dict
        What the YAML file holds, and ``name`` and ``corpora``, the names of two text corpora.

    Raises
    ------
    ValueError
        If there is no such profile, model or data source; the message lists what may be chosen.
    """
    import torch

    profile = read_profile(name, models, datasets, limit)
    if not torch.cuda.is_available():
        profile["dtype"] = dtype_on_cpu(profile)
    return profile


def dtype_on_cpu(profile: dict[str, Any]) -> str:
    """What a profile computes in where there is no GPU."""
    return profile.get("dtype_on_cpu", "float32")


def read_profile(
    name: str,
    models: list[str] | None = None,
    datasets: str | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """:func:`load_profile` with the file's ``dtype``, and without torch, which takes seconds."""
    profile = _read_file(name)
    profile["name"] = name
    if models:
        full_names = dict.fromkeys(model_name(model) for model in models)
        _replace_models(profile, list(full_names))
    if datasets:
        profile["datasets"] = data_source(datasets)
    if limit is not None:
        _limit_rows(profile, limit)
    left_out = os.environ.get(LEFT_OUT, "").split(",")
    for part, key in ((profile, "models"), (profile["alpha_search"], "extra_models")):
        part[key] = [model for model in part[key] if model not in left_out]
    profile["corpora"] = default_corpora(profile["datasets"])
    return profile


def _read_file(name: str) -> dict[str, Any]:
    import yaml

    file = PROFILES / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in PROFILES.glob("*.yaml")))
        raise ValueError(f"unknown profile {name!r}; choose from {known}")
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def _replace_models(profile: dict[str, Any], models: list[str]) -> None:
    """Use these models in every experiment of a profile, and no others.

    If they are the profile's own, nothing but its extra models goes.
    """
    profile["alpha_search"]["extra_models"] = []
    if set(models) == set(profile["models"]):
        return
    profile["models"] = models
    profile["efficiency"]["shapes"] = {}
    for section in ("ablations", "longbench", "efficiency"):
        profile[section].pop("models", None)
    for settings in profile["depths"].values():
        for model in settings.keys() - set(models):
            del settings[model]
    for settings in _task_settings(profile):
        rows = settings["rows"]
        if isinstance(rows, dict):  # a model without a number of its own gets the largest
            largest = max(rows.values())
            settings["rows"] = {model: rows.get(model, largest) for model in models}


def _limit_rows(profile: dict[str, Any], limit: int) -> None:
    """Give every task of a profile ``limit`` rows, for the models that it is meant for."""
    for settings in _task_settings(profile):
        if isinstance(settings["rows"], dict):
            settings["rows"] = dict.fromkeys(settings["rows"], limit)
        else:
            settings["rows"] = limit


def _task_settings(profile: dict[str, Any]) -> list[dict[str, Any]]:
    """The settings of every benchmark of a profile; changing them changes the profile."""
    settings = []
    for section in SECTIONS_WITH_TASKS:
        settings.extend(profile[section]["tasks"].values())
    return settings


def profile_for(model: str, profile: dict[str, Any]) -> dict[str, Any]:
    """A profile with only the benchmarks that are meant for one model, in that model's settings.

    ``dtype`` becomes the model's, where the profile has one for it in ``dtype_of``. What
    ``efficiency`` has for it in ``settings_of`` replaces that section's settings. A setting of a
    benchmark, and the ``context`` of ``alpha_search``, may be a dict with a value for each model. A
    model that the dict of ``rows`` does not name is not evaluated on that benchmark.
    """
    profile_of_model = dict(profile)
    dtypes = profile.get("dtype_of", {})
    profile_of_model["dtype"] = dtypes.get(model, profile["dtype"])
    efficiency = profile["efficiency"]
    own_settings = efficiency.get("settings_of", {}).get(model, {})
    profile_of_model["efficiency"] = efficiency | own_settings
    search = profile["alpha_search"]
    profile_of_model["alpha_search"] = search | {"context": _value_for(model, search["context"])}
    for section in SECTIONS_WITH_TASKS:
        tasks = {}
        for name, settings in profile[section]["tasks"].items():
            if _value_for(model, settings["rows"], default=0) != 0:
                tasks[name] = {key: _value_for(model, value) for key, value in settings.items()}
        profile_of_model[section] = {**profile[section], "tasks": tasks}
    return profile_of_model


def _value_for(model: str, setting: Any, default: Any = None) -> Any:
    """A model's value of a setting, the default if it has one for others but not for this one."""
    if isinstance(setting, dict):
        return setting.get(model, default)
    return setting


def is_left_out(profile: dict[str, Any], section: str) -> bool:
    """Whether a section of a profile, such as ``"frontier.tasks"``, is empty; null is a default."""
    value: Any = profile
    for name in section.split("."):
        value = value.get(name, {})
    return value in ({}, [])


def default_corpora(datasets: str) -> tuple[str, str]:
    """The two corpora of a data source: alpha is searched on each and evaluated on both."""
    if datasets == "hub":
        return ("wikitext", "pile_10k")
    folder = Path(datasets)
    if not (folder / "wikitext").is_dir():  # embedded, or a folder without texts
        return ("python-docs", "scipy-docs")
    if not (folder / "pile_10k").is_dir():
        return ("wikitext", "python-docs")
    return ("wikitext", "pile_10k")


def num_pruned_layers(profile: dict[str, Any], model: str, num_layers: int) -> int:
    """How many top layers to prune: the profile's number for a model, or else its fraction."""
    number = profile["pruned_layers"].get(model)
    if number:
        return number
    return max(1, round(profile["pruned_fraction"] * num_layers))


def folder_of(datasets: str) -> Path | None:
    """The folder that a data source reads from; None is the hub."""
    if datasets == "hub":
        return None
    if datasets == "embedded":
        return DATA / "mini"
    return Path(os.path.expanduser(datasets))
