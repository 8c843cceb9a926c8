"""Where things are kept, what models are called, and profiles: YAML files that decide how large an
experiment is.

The standard library only at import: the command line reads paths and names before anything is
installed.
"""

import hashlib
import os
import re
import tomllib
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]  # where the code is
ROOT = Path(os.environ.get("HARP_ROOT") or CHECKOUT)  # where everything else is
DATA = ROOT / "data"
CONFIGS = DATA / "configs"
MODELS = DATA / "models"
PAPER = DATA / "paper"
PROFILES = DATA / "profiles"
RESULTS = DATA / "results"
REFERENCE = DATA / "reference"
FIGURES = ROOT / "figures"
NOTEBOOKS = ROOT / "notebooks"

REGISTRY = tomllib.loads((DATA / "models.toml").read_text(encoding="utf-8"))
NAMED_MODELS = REGISTRY["models"]  # which need no hub
ASKED_SECTIONS = (
    "evaluation",
    "likelihoods",
    "longbench",
)  # of a profile, which say what models are asked
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def slug(model: str) -> str:
    """A model's name as part of a file's name: a folder's with a digest of its path, a hub id with
    ``--``.
    """
    if model in NAMED_MODELS or not os.path.isdir(model):
        return model.replace("/", "--")
    path = os.path.abspath(model)
    return f"{Path(path).name}-{hashlib.sha256(path.encode()).hexdigest()[:6]}"


def load_profile(
    name: str,
    models: list[str] | None = None,
    datasets: str | None = None,
    limit: int | None = None,
    as_written: bool = False,
) -> dict[str, Any]:
    """Read a profile, with the models, the data source and the rows of each task replaced where
    they are given.

    To what the YAML file holds it adds ``name``, ``models``, ``datasets`` and two ``corpora``.
    Without a GPU ``dtype`` is float32, since many processors emulate bfloat16, 4 to 15 times
    slower; not if ``as_written``. A ValueError lists the known profiles.
    """
    import yaml

    file = PROFILES / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in PROFILES.glob("*.yaml")))
        raise ValueError(f"unknown profile {name!r}; choose from {known}")
    profile = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not as_written:
        import torch

        profile |= {} if torch.cuda.is_available() else {"dtype": "float32"}
    if models:
        profile["alpha_search"]["extra_models"], profile["efficiency"]["shapes"] = [], None
        for section in ("ablations", "longbench"):
            profile[section].pop("models", None)
        for section in ASKED_SECTIONS:
            for settings in profile[section]["tasks"].values():
                if isinstance(rows := settings["rows"], dict):
                    settings["rows"] = {
                        model: rows.get(model, max(rows.values())) for model in models
                    }
    profile |= {
        "name": name,
        "models": models or profile["models"],
        "datasets": datasets or profile["datasets"],
    }
    if profile["datasets"] not in ("embedded", "hub") and not Path(profile["datasets"]).is_dir():
        raise ValueError(
            f"unknown datasets {profile['datasets']!r}; choose from embedded, hub, or a folder"
        )
    if limit is not None:
        for section in ASKED_SECTIONS:
            for settings in profile[section]["tasks"].values():
                rows = settings["rows"]
                settings["rows"] = dict.fromkeys(rows, limit) if isinstance(rows, dict) else limit
    return profile | {"corpora": default_corpora(profile["datasets"])}


def asked_of(model: str, profile: dict[str, Any]) -> dict[str, Any]:
    """A profile with the benchmarks that one model is asked, and its own settings where models have
    their own.
    """
    asked = dict(profile)
    for section in ASKED_SECTIONS:
        tasks = {}
        for name, settings in profile[section]["tasks"].items():
            if isinstance(settings["rows"], dict) and model not in settings["rows"]:
                continue
            tasks[name] = {key: _own(value, model) for key, value in settings.items()}
        margins = model not in profile[section].get("without_margins", ())
        asked[section] = profile[section] | {"tasks": tasks, "margins": margins}
    return asked


def _own(setting: Any, model: str) -> Any:
    """A setting, or a model's own one where there is one for each; None for a model that is not
    named.
    """
    return setting.get(model) if isinstance(setting, dict) else setting


def default_corpora(datasets: str) -> tuple[str, str]:
    """The two corpora that a data source offers: alpha is searched on each and evaluated on both."""
    if datasets == "hub":
        return ("wikitext", "pile_10k")
    if not (Path(datasets) / "wikitext").is_dir():  # embedded, or a folder without texts
        return ("python-docs", "scipy-docs")
    return ("wikitext", "pile_10k" if (Path(datasets) / "pile_10k").is_dir() else "python-docs")


def num_pruned_layers(profile: dict[str, Any], model: str, num_layers: int) -> int:
    """How many top layers the profile prunes: its own number for a model, or its fraction for any
    other.
    """
    return profile["pruned_layers"].get(model) or max(
        1, round(profile["pruned_fraction"] * num_layers)
    )
