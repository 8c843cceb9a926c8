"""What a run reads from the model hub: whether it may, at which commit, and all of it beforehand.

A run that needs the hub first asks for access to every repository, then fetches what is missing,
and after that works offline. So a licence that nobody has accepted is known before anything is
computed, and a hub that answers late or not at all can disturb the beginning alone.
"""

import json
import os
import re
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from harp_lib import config
from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS, repositories_of
from harp_lib.models.repository import Repository, models_of_hub
from harp_lib.names import CORPORA
from harp_lib.results import write_json

OFFLINE = "1"  # the value of HF_HUB_OFFLINE that a run sets
PAUSES = (2, 10, 30)  # seconds before the second, third and fourth attempt
REFUSING = (401, 403)  # answers of a hub that does not like a token
PASSING = (429, 500, 502, 503, 504)  # answers of a hub that is busy
# Files of a repository that no run reads: second copies of the weights in other formats.
SECOND_COPIES = ("original/*", "consolidated*", "*.pth", "*.gguf", "*.onnx", "onnx/*", "*.msgpack")

Value = TypeVar("Value")


def datasets_of_hub(profile: dict[str, Any]) -> list[Repository]:
    """The data sets that a profile's benchmarks and texts come from; none if they are local."""
    if profile["datasets"] != "hub":
        return []
    names = [CORPORA[corpus]["hub"][0] for corpus in _corpora(profile)]
    for name, subtasks in _tasks(profile):
        names += repositories_of(ALL_BENCHMARKS[name], subtasks)
    return [Repository("dataset", name) for name in dict.fromkeys(names)]


def _corpora(profile: dict[str, Any]) -> list[str]:
    """The corpora of a profile that the hub has."""
    names = [*profile["corpora"], profile["frontier"]["unseen"]]
    return [name for name in names if "hub" in CORPORA[name]]


def _tasks(profile: dict[str, Any]) -> list[tuple[str, Any]]:
    """The benchmarks of a profile, each with its choice of subtasks."""
    tasks = []
    for section in config.SECTIONS_WITH_TASKS:
        for name, settings in profile[section]["tasks"].items():
            subtasks = settings.get("subtasks") or profile[section].get("subtasks")
            tasks.append((name, subtasks))
    return tasks


class HubUnreachableError(RuntimeError):
    """The hub does not answer at all."""


def obstacle(repository: Repository) -> str | None:
    """Why a repository cannot be read, and the way out; None if it can.

    Raises
    ------
    HubUnreachableError
        If the hub does not answer.
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    file = "config.json" if repository.kind == "model" else "README.md"
    url = hf_hub_url(repository.name, file, repo_type=repository.kind)
    try:
        patiently(get_hf_file_metadata, url)
    except errors.EntryNotFoundError:
        return None  # the repository is there, and open
    except (errors.GatedRepoError, errors.RepositoryNotFoundError) as error:
        return _refusal(repository, error)
    except errors.HfHubHTTPError as error:
        if error.response.status_code not in REFUSING:
            raise HubUnreachableError(_first_line(error)) from error
        return _refusal(repository, error)
    except Exception as error:  # of whichever library the hub's client is built on
        raise HubUnreachableError(_first_line(error)) from error
    return None


def _refusal(repository: Repository, error: Exception) -> str:
    """What to do about an answer of the hub: without a token 401, without a licence 403."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        if error.response.status_code == 403:
            return f"its licence has not been accepted: accept it on {repository.page}"
        return f"it needs a token: accept its licence on {repository.page}, then `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"there is no such {repository.kind}, or only for its owner: look at "
            f"{repository.page}, or log in by `hf auth login`"
        )
    return (
        f"the hub refuses the token ({_first_line(error)}): look whether it has expired or may not "
        "read gated repositories, on https://huggingface.co/settings/tokens"
    )


def patiently(ask: Callable[..., Value], *arguments: Any, **options: Any) -> Value:
    """What ``ask`` returns; a busy hub is asked again, after a pause."""
    for pause in PAUSES:
        try:
            return ask(*arguments, **options)
        except Exception as error:
            if not _passes(error):
                raise
            print(f"the hub is busy ({_first_line(error)}); again in {pause} s", flush=True)
            time.sleep(pause)
    return ask(*arguments, **options)


def _passes(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, is the answer of a busy hub."""
    while error is not None:
        if getattr(getattr(error, "response", None), "status_code", None) in PASSING:
            return True
        error = error.__cause__ or error.__context__
    return False


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def fetch_command(options: Namespace) -> int:
    """``./run_all.sh fetch``: bring into the cache what a run reads; return the exit code."""
    try:
        profile = config.read_profile(options.profile, options.models, options.datasets)
        _stamp(profile).unlink(missing_ok=True)  # the newest commits are wanted
        refused = prepare(profile)
    except ValueError as error:
        print(f"run_all.sh: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"run_all.sh: error: {error}", file=sys.stderr)
        return 1
    for model, reason in refused.items():
        print(f"{model} is left out: {reason}")
    if refused:
        return 1
    print(f"everything that the profile {options.profile} reads is here; HF_HUB_OFFLINE=1 will do")
    return 0


def _stamp(profile: dict[str, Any]) -> Path:
    """The file that says what was fetched."""
    return config.RESULTS / profile["name"] / ".fetched.json"


def prepare(profile: dict[str, Any]) -> dict[str, str]:
    """Ask for access to all that a run reads, fetch what is missing, and try to load the models.

    From then on this process and those that it starts work without the hub. Returned is why models
    cannot be read, and the way out, by their names. The run leaves them out.

    Raises
    ------
    ValueError
        If a data set cannot be read, or none of the models; the message lists all that is missing.
    OSError
        If the disk has too little room.
    """
    models = [*profile["models"], *profile["alpha_search"]["extra_models"]]
    datasets = datasets_of_hub(profile)
    repositories = [*models_of_hub(models), *datasets]
    refused = _obstacles(repositories)
    _check_rest(profile, refused, datasets)
    readable = [model for model in models if model not in refused]
    if repositories and not is_offline():
        stamp = _stamp(profile)
        if not _is_fetched(profile, readable, stamp):
            fetch(profile, readable)
            write_json(stamp, _state(profile, readable))
        os.environ["HF_HUB_OFFLINE"] = OFFLINE
    refused |= _damages(readable)
    _check_rest(profile, refused, datasets)
    return refused


def _check_rest(
    profile: dict[str, Any], refused: dict[str, str], datasets: Iterable[Repository]
) -> None:
    """Raise a ValueError, which lists all that is refused, if nothing can be computed without."""
    lacks_rows = any(repository.name in refused for repository in datasets)
    if lacks_rows or not set(profile["models"]) - set(refused):
        reasons = [f"{name}: {reason}" for name, reason in refused.items()]
        raise ValueError("\n  ".join(["the run cannot read", *reasons]))


def _damages(models: Iterable[str]) -> dict[str, str]:
    """Why models that are here cannot be loaded, and the way out, by their names.

    Those of the registry are not tried: they were checked when they were installed.
    """
    reasons = {}
    for model in models:
        if model in config.NAMED_MODELS:
            continue
        from harp_lib.models.load import load_with_tokenizer  # here, because it imports torch

        source, way_out = model, "mend the folder"
        for repository in models_of_hub([model]):
            source = str(repository.snapshot)  # the hub need not be reached
            way_out = f"delete {repository.folder}, and it is fetched again"
        try:
            load_with_tokenizer(source, device_map="meta")  # reads no weights
        except Exception as error:  # of transformers, safetensors, tokenizers
            reason = _first_line(error).removeprefix(f"{source} cannot be loaded: ")
            reasons[model] = f"it cannot be loaded ({reason}): {way_out}"
    return reasons


def _obstacles(repositories: Sequence[Repository]) -> dict[str, str]:
    """Why repositories cannot be read, by their names; those that are in the cache can."""
    refused = {}
    if not is_offline():
        try:
            for repository in repositories:
                reason = obstacle(repository)
                if reason and not repository.commit:
                    refused[repository.name] = reason
            return refused
        except HubUnreachableError as error:
            print(f"the hub cannot be reached ({error}): its cache has to do", flush=True)
            os.environ["HF_HUB_OFFLINE"] = OFFLINE
    for repository in repositories:
        if not repository.commit:
            refused[repository.name] = (
                "not in the hub's cache: `./run_all.sh fetch` with the same options, where there "
                "is a network"
            )
    return refused


def is_offline() -> bool:
    """Whether the hub is not to be asked."""
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE") == OFFLINE


def fetch(profile: dict[str, Any], models: Iterable[str]) -> None:
    """Bring everything that a run reads into the hub's cache; what is there stays.

    Models come without the second copies of their weights. The rows of benchmarks are loaded once,
    as lm-eval does it, so that they are found without the hub.

    Raises
    ------
    OSError
        If the disk has too little room; the message says how much it takes.
    """
    from huggingface_hub import snapshot_download

    repositories = models_of_hub(models)
    _check_room(repositories)
    for repository in repositories:
        print(f"fetching {repository.name}", flush=True)
        left_out = _left_out(repository.name)
        patiently(snapshot_download, repository.name, ignore_patterns=left_out)
    if profile["datasets"] == "hub":
        _fetch_rows(profile)


def _left_out(model: str) -> list[str]:
    """Patterns of a model's files that are not fetched: also weights by pickle, beside others."""
    from huggingface_hub import HfApi

    files = patiently(HfApi().list_repo_files, model)
    patterns = [*SECOND_COPIES]
    if any(re.fullmatch(r"model.*\.safetensors", file) for file in files):
        patterns.append("*.bin")
    return patterns


def _check_room(repositories: Iterable[Repository]) -> None:
    """Say how many gigabytes are missing, and raise an OSError if the disk has less room."""
    from huggingface_hub import constants, snapshot_download

    missing = 0
    for repository in repositories:
        left_out = _left_out(repository.name)
        plan = patiently(snapshot_download, repository.name, ignore_patterns=left_out, dry_run=True)
        missing += sum(file.file_size for file in plan if file.will_download)
    if not missing:
        return
    cache = Path(constants.HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    sizes = f"{missing / 1e9:.1f} GB to fetch into {cache}, {free / 1e9:.1f} GB are free there"
    if missing > free:
        raise OSError(f"{sizes}: set HF_HOME to a larger disk, or leave models out by --models")
    print(sizes, flush=True)


def _fetch_rows(profile: dict[str, Any]) -> None:
    """Load every text and every benchmark once, which fills the caches of hub and datasets."""
    from tempfile import TemporaryDirectory

    from tqdm import tqdm

    from harp_lib.evaluation.runner import load_tasks
    from harp_lib.text.corpora import SPLITS, load_corpus

    for name in _corpora(profile):
        splits = ("validation",) if "task" in CORPORA[name] else SPLITS
        for split in splits:
            patiently(load_corpus, name, split, "hub")
    with TemporaryDirectory() as cache:
        for name, subtasks in tqdm(_tasks(profile), desc="fetching rows", unit="benchmark"):
            patiently(load_tasks, ALL_BENCHMARKS[name], "hub", {}, cache, subtasks)


def _is_fetched(profile: dict[str, Any], models: Iterable[str], stamp: Path) -> bool:
    """Whether everything was fetched before, at the commits that are in the cache."""
    with suppress(OSError, ValueError):
        return json.loads(stamp.read_bytes()) == _state(profile, models)
    return False


def _state(profile: dict[str, Any], models: Iterable[str]) -> dict[str, Any]:
    repositories = [*models_of_hub(models), *datasets_of_hub(profile)]
    commits = {f"{entry.kind} {entry.name}": entry.commit for entry in repositories}
    return {"commits": commits, "tasks": [list(task) for task in _tasks(profile)]}
