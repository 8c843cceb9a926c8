"""Begins a rehearsal or a trial: a folder of its own, and in it what was asked for, as a run."""

import hashlib
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, NoReturn

import yaml

from harp_lib import config
from rehearse import hub_server, make_hub, slurm
from rehearse.shorten import shortened, tried

OWN = ("results", "reference", "profiles")
"""Folders of data that a rehearsal or a trial has to itself."""


def rehearse(options: Namespace, arguments: list[str]) -> int:
    """Become the run, or the fetching, that ``arguments`` ask for, with the double of the hub.

    With ``HF_HUB_OFFLINE`` no double is started, so that only what was fetched before is found.
    Returns 2 if the profile has a model without a double.
    """
    profile = config.read_profile(options.profile)
    models = [*profile["models"], *profile["alpha_search"]["extra_models"]]
    missing = make_hub.models_without_double(models)
    if missing:
        print(
            f"run_all.sh: error: {missing[0]} has no double: a rehearsal is of a profile with "
            "models of the hub whose configs are in data/configs, such as paper",
            file=sys.stderr,
        )
        return 2
    root = config.ROOT / "rehearsal"
    short = shortened(_file_of(options.profile))
    _make_root(root, options.profile, short)
    hub = root / "hub"
    _make_hub_once(hub, short)
    environment = without_hub_settings() | {"HARP_ROOT": str(root), "HF_HOME": str(root / "hf")}
    environment.setdefault("OMP_NUM_THREADS", "1")  # layers so small are slower with more
    if not os.environ.get("HF_HUB_OFFLINE"):
        environment["HF_ENDPOINT"] = start_hub(hub).stdout.readline().strip()
    if options.command == "run" and options.executor == "slurm":
        environment |= slurm.install(root / "slurm")
    _become_run(arguments, environment)


def try_out(options: Namespace, arguments: list[str]) -> NoReturn:
    """Become the run that ``arguments`` ask for, with few rows and documents of one model."""
    root = config.ROOT / "trial"
    _make_root(root, options.profile, tried(_file_of(options.profile)))
    _become_run(arguments, os.environ | {"HARP_ROOT": str(root)})


def _file_of(profile: str) -> dict[str, Any]:
    """What a profile's file holds."""
    return yaml.safe_load((config.PROFILES / f"{profile}.yaml").read_text(encoding="utf-8"))


def _make_root(root: Path, name: str, profile: dict[str, Any]) -> None:
    """A folder with this checkout's notebooks and data, and its own profile and results."""
    sources = {
        root / "notebooks": config.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"),
        root / "data": [file for file in config.DATA.iterdir() if file.name not in OWN],
    }
    for folder, files in sources.items():
        folder.mkdir(parents=True, exist_ok=True)
        for source in files:
            link = folder / source.name
            link.unlink(missing_ok=True)
            link.symlink_to(source)
    (root / "data" / "profiles").mkdir(exist_ok=True)
    file = root / "data" / "profiles" / f"{name}.yaml"
    file.write_text(yaml.safe_dump(profile, sort_keys=False), encoding="utf-8")


def _make_hub_once(hub: Path, profile: dict[str, Any]) -> None:
    """Make the double of the hub, unless it is there and as this code makes it."""
    sources = Path(make_hub.__file__).read_bytes() + yaml.safe_dump(profile).encode()
    stamp = hashlib.sha256(sources).hexdigest()
    file = hub / "stamp"
    if file.is_file() and file.read_text() == stamp:
        return
    print("making a hub of tiny models and made-up rows", flush=True)
    for kind in ("models", "datasets"):
        shutil.rmtree(hub / kind, ignore_errors=True)
    make_hub.make_hub(hub, profile)
    file.write_text(stamp)


def without_hub_settings() -> dict[str, str]:
    """The environment without what leads to the user's own hub, its cache, or a proxy."""
    environment = {}
    for name, value in os.environ.items():
        of_hub = name.startswith(("HF_", "HUGGINGFACE_", "TRANSFORMERS_CACHE"))
        if not of_hub or name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
            environment[name] = value
    environment["NO_PROXY"] = environment["no_proxy"] = "127.0.0.1"
    return environment


def start_hub(hub: Path) -> subprocess.Popen:
    """Start the double of the hub, which ends with this process; it prints its address."""
    return subprocess.Popen(
        [sys.executable, "-P", hub_server.__file__, hub],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interrupted run may still ask
    )


def _become_run(arguments: list[str], environment: dict[str, str]) -> NoReturn:
    command = [sys.executable, "-P", "-m", "harp_lib.cli", *arguments]
    os.execve(sys.executable, command, environment)
