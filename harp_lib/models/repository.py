"""Repositories of the model hub, and the commit of what its cache has of them."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harp_lib import config


@dataclass(frozen=True)
class Repository:
    """A repository of the hub: ``kind`` is model or dataset, ``name`` is ``owner/name``."""

    kind: str
    name: str

    @property
    def page(self) -> str:
        """Its address, for people."""
        from huggingface_hub import constants

        prefix = constants.REPO_TYPES_URL_PREFIXES.get(self.kind, "")
        return f"{constants.ENDPOINT}/{prefix}{self.name}"

    @property
    def folder(self) -> Path:
        """Where the hub's cache keeps its files."""
        from huggingface_hub import constants, file_download

        name = file_download.repo_folder_name(repo_id=self.name, repo_type=self.kind)
        return Path(constants.HF_HUB_CACHE) / name

    @property
    def commit(self) -> str | None:
        """The commit of the files in the cache that are read; None if there are none."""
        with suppress(OSError):
            return (self.folder / "refs" / "main").read_text(encoding="utf-8").strip()
        snapshots = list(self.folder.glob("snapshots/*"))
        if not snapshots:
            return None
        return max(snapshots, key=lambda snapshot: snapshot.stat().st_mtime).name

    @property
    def snapshot(self) -> Path:
        """The folder of the files in the cache that are read."""
        return self.folder / "snapshots" / str(self.commit)


def models_of_hub(models: Iterable[str]) -> list[Repository]:
    """The models that are repositories of the hub, and no folders or named ones."""
    repositories = []
    for model in models:
        is_of_hub = model not in config.NAMED_MODELS and config.HUB_ID.fullmatch(model)
        if is_of_hub and not os.path.isdir(model):
            repositories.append(Repository("model", model))
    return repositories
