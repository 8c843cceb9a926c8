"""What is in the files that a run reads: a change under an unchanged name has to be noticed."""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from harp_lib import config
from harp_lib.models.repository import models_of_hub
from harp_lib.results import digest, write_json

KNOWN = ".contents.json"  # digests of files by path, with the state in which each was read


def contents_of_models(profile: dict[str, Any]) -> dict[str, str]:
    """A digest of each model of a profile, by its name.

    A named model is what the registry says of it, a repository of the hub the commit in the cache.
    """
    contents = {}
    for model in (*profile["models"], *profile["alpha_search"]["extra_models"]):
        if model in config.NAMED_MODELS:
            contents[model] = digest(config.NAMED_MODELS[model])
        elif Path(model).is_dir():
            # Folders in it, as of a training's checkpoints, are not read.
            contents[model] = _digest_of_files(Path(model).glob("[!.]*"))
        for repository in models_of_hub([model]):
            contents[model] = str(repository.commit)
    return contents


def contents_of_rows(profile: dict[str, Any]) -> str | None:
    """A digest of the rows of benchmarks and corpora in a profile's folder; None for the hub."""
    folder = config.folder_of(profile["datasets"])
    if folder is None:
        return None
    return _digest_of_files(folder.glob("*/*.jsonl"))


def _digest_of_files(files: Iterable[Path]) -> str:
    """One digest of files and their names.

    A file is read again only if its size or one of its times has changed.
    """
    known_file = config.RESULTS / KNOWN
    known = {}
    with suppress(OSError, ValueError):
        known = json.loads(known_file.read_bytes())
    before = dict(known)
    digests = {}
    for file in sorted(files):
        if not file.is_file():
            continue
        status = file.stat()
        # The time of the last change of status cannot be set back.
        state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        path = str(file.absolute())
        if known.get(path, [None])[0] != state:
            with file.open("rb") as stream:
                known[path] = [state, hashlib.file_digest(stream, "sha256").hexdigest()]
        digests[path] = known[path][1]
    if known != before:
        write_json(known_file, known)
    return digest(digests)
