"""A file of finished candidates, from which an interrupted search continues."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from harp_lib import __version__

VOLATILE = {"_name_or_path", "transformers_version", "architectures"}  # of a config: where it came from, not what it is


def model_digest(model: PreTrainedModel) -> str:
    """Sixteen hexadecimal digits that stand for the model's config and all of its weights.

    The bits of each row are summed as integers: exact, on any device, and quick.
    """
    config = {key: value for key, value in model.config.to_dict().items() if key not in VOLATILE}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        if not weight.is_meta:  # offloaded weights are elsewhere; the others have to do
            bits = weight.contiguous().view(
                {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.itemsize]
            )
            digest.update(bits.sum(dim=-1).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def fingerprint(model: PreTrainedModel, tokens: Sequence[torch.Tensor], options: dict[str, Any]) -> str:
    """Digest of everything that a candidate's likelihood depends on: model, tokens, options."""
    digest = hashlib.sha256(json.dumps([__version__, model_digest(model), options], sort_keys=True).encode())
    for ids in tokens:
        digest.update(ids.cpu().numpy().tobytes() + str(tuple(ids.shape)).encode())
    return digest.hexdigest()[:16]


class Journal:
    """Remembers the likelihood of each candidate, on disk if a path is given.

    The file has one JSON object a line: first the fingerprint of the search, then the candidates. A last line that
    was cut off by a kill is dropped.
    """

    def __init__(self, path: str | Path | None, fingerprint: str):
        self.path = Path(path) if path else None
        self.seconds = 0.0
        self.known: dict[tuple[int, float], float] = {}
        if self.path and self.path.exists():
            self._read(fingerprint)
        elif self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"search": fingerprint})

    def _read(self, fingerprint: str) -> None:
        content = self.path.read_text(encoding="utf-8")
        whole = content[: content.rfind("\n") + 1]
        try:
            header, *entries = map(json.loads, whole.splitlines() or ['{"search": null}'])
            found = header["search"]
            self.known = {(entry["layer"], entry["alpha"]): entry["nll"] for entry in entries}
            self.seconds = sum(entry["seconds"] for entry in entries)
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{self.path} is not the journal of an alpha search; give another file") from None
        if whole and found != fingerprint:
            raise ValueError(
                f"{self.path} belongs to another search (other weights, tokens, grid or options); "
                "delete it or give another file"
            )
        if whole != content:
            os.truncate(self.path, len(whole.encode()))
        if not whole:
            self._append({"search": fingerprint})

    def remember(self, layer: int, alpha: float, compute: Callable[[], float]) -> float:
        """The candidate's likelihood, computed unless the file has it."""
        if (layer, alpha) not in self.known:
            begin = time.perf_counter()
            nll = self.known[layer, alpha] = compute()
            seconds = time.perf_counter() - begin
            self.seconds += seconds
            if self.path:
                self._append({"layer": layer, "alpha": alpha, "nll": nll, "seconds": seconds})
        return self.known[layer, alpha]

    def _append(self, entry: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
