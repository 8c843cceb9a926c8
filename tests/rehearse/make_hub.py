"""What hub_server.py serves: all that a profile of hub models reads, under its real ids, but tiny.

Models have the layers, heads and context of the real ones, and random weights of a few columns.
Data sets have the embedded rows of ``data/mini``, in the schema and the splits of the real ones; a
subtask that is not embedded has a sibling's rows.
"""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from lm_eval.tasks._yaml_loader import load_yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from harp_lib import config
from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS, LONGBENCH, Benchmark
from harp_lib.evaluation.runner import quiet_lm_eval
from harp_lib.names import CORPORA
from harp_lib.text.corpora import load_corpus
from harp_lib.text.rows import read_rows
from rehearse.hub_server import read_card

Rows = list[dict[str, Any]]

COLUMNS_OF_A_HEAD = 2
VOCABULARY = 4096  # of a tokenizer
QUESTIONS = 2  # of each task; a profile's `rows: null` asks them all
EXAMPLES = 26  # that few shots are drawn from; ARC-Challenge shows 25
PAGE = 500  # characters of a document
PILE = 60  # documents, which the library deals out to its three splits

BOS = {"llama": "<|begin_of_text|>", "mistral": "<s>", "qwen2": None, "gemma2": "<bos>"}
"""The token that a tokenizer puts first, by model type."""
CONFIG_OF = {"meta-llama/Llama-3.1-70B": "Llama-3.1-8B"}  # of data/configs, if not of its own name
DIFFERENT = {"meta-llama/Llama-3.1-70B": {"num_hidden_layers": 80, "num_attention_heads": 64}}
GENERATION = {  # what the generation configs of the real repositories say beside their tokens
    "llama": {"do_sample": True, "temperature": 0.6, "top_p": 0.9},
    "gemma2": {"cache_implementation": "hybrid"},
    "qwen2": {"do_sample": False, "max_new_tokens": 2048},
}
SECOND_COPIES = {  # of the weights, which no run reads
    "llama": "original/consolidated.00.pth",
    "mistral": "consolidated.safetensors",
}
ONLY_CONFIGURATION = {"nq_open": "nq_open"}  # lm-eval does not name it, the hub does


def models_without_double(names: Iterable[str]) -> list[str]:
    """The models among ``names`` that this hub cannot have."""
    return [name for name in names if not ("/" in name and _config_file(name).is_file())]


def _config_file(model: str) -> Path:
    name = CONFIG_OF.get(model, model.rpartition("/")[2])
    return config.CONFIGS / f"{name}.json"


@quiet_lm_eval()
def make_hub(folder: Path, profile: dict[str, Any]) -> None:
    """Fill a folder with the models and data sets of a profile."""
    for benchmark in ALL_BENCHMARKS.values():
        for name, file in benchmark.subtasks().items():
            task = load_yaml(file)
            configuration = task.get("dataset_name") or ONLY_CONFIGURATION.get(name)
            add_dataset(folder, task["dataset_path"], configuration, _splits(benchmark, name, task))
    for name, splits in _texts(profile["alpha_search"]).items():
        corpus = CORPORA[name]
        rows = {}
        for split, texts in splits.items():
            rows[split] = [{corpus["field"]: text} for text in texts]
        repo, *configuration = corpus["hub"]
        add_dataset(folder, repo, *configuration or [None], rows)
    texts = [text[:PAGE] for text in load_corpus("python-docs", "train").documents]
    rows = sorted((config.DATA / "mini").glob("*/*.jsonl"))
    texts += [file.read_text(encoding="utf-8") for file in rows]  # so that prompts have few tokens
    for name in [*profile["models"], *profile["alpha_search"]["extra_models"]]:
        make_model(folder / "models" / name, name, texts)


def _splits(benchmark: Benchmark, name: str, task: dict[str, Any]) -> dict[str, Rows]:
    """Every split that an lm-eval task names; only the questions are few."""
    embedded = _embedded_folder(benchmark, name)
    rows = {}
    for file in embedded.glob("*.jsonl"):
        rows[file.stem] = read_rows(file, [], benchmark.title)
    if "all_classes" in benchmark.fields:
        for row in rows["test"]:
            row["all_classes"] = row["answers"]
    any_rows = rows[benchmark.split]
    splits = {}
    for key in ("training_split", "validation_split", "test_split", "fewshot_split"):
        split = task.get(key)
        if split:
            several = itertools.cycle(rows.get(split, any_rows))
            splits[split] = list(itertools.islice(several, EXAMPLES))
    splits[benchmark.split] = any_rows[:QUESTIONS]
    return splits


def _embedded_folder(benchmark: Benchmark, name: str) -> Path:
    """The embedded rows of a task, or of another one with the same schema."""
    others = benchmark.subtasks()
    if benchmark.name in LONGBENCH:
        others = LONGBENCH
    folders = [config.DATA / "mini" / task for task in (name, *others)]
    return next(folder for folder in folders if folder.is_dir())


def add_dataset(hub: Path, repo: str, name: str | None, splits: dict[str, Rows]) -> None:
    """Add a configuration to a data set: a parquet file for each split, and its lines in README."""
    folder = hub / "datasets" / repo
    name = name or "default"
    files = []
    for split, rows in splits.items():
        file = folder / name / f"{split}-00000-of-00001.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([_without_empty(row) for row in rows]), file)
        files.append({"split": split, "path": f"{name}/{split}-*"})
    readme = folder / "README.md"
    card = {"configs": []}
    if readme.is_file():
        card = read_card(readme.read_text(encoding="utf-8"))
    card["configs"].append({"config_name": name, "data_files": files})
    readme.write_text(f"---\n{yaml.safe_dump(card)}---\n# {repo}\n", encoding="utf-8")


def _without_empty(value: Any) -> Any:
    """Parquet knows no empty structs, such as TriviaQA's ``entity_pages`` are in the rows."""
    if isinstance(value, dict):
        return {key: _without_empty(item) for key, item in value.items() if item != {}}
    return value


def _texts(settings: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """The two corpora, by split.

    WikiText-2 has as many test pages as are searched, and as many validation pages as are held out.
    So no page is left for a second sample, as with the real ones.
    """
    sizes = {"train": None, "validation": settings["held_out"][0], "test": settings["documents"]}
    wikitext = {}
    for split, size in sizes.items():
        pages = load_corpus("python-docs", split).documents[:size]
        wikitext[split] = [_as_page(text[:PAGE]) for text in pages]
    documents = itertools.chain.from_iterable(
        load_corpus("scipy-docs", split).documents for split in ("train", "validation", "test")
    )
    long_ones = (text[:PAGE] for text in documents if len(text) >= PAGE)
    return {"wikitext": wikitext, "pile_10k": {"train": list(itertools.islice(long_ones, PILE))}}


def _as_page(text: str) -> str:
    """A text in WikiText's spelling: words between blanks, with a heading."""
    words = text.replace(",", " @,@ ").replace(".", " . ").split()
    return f" = {words[0]} = \n \n {' '.join(words)} \n"


def make_model(folder: Path, name: str, texts: list[str]) -> None:
    """A tiny model and its tokenizer, sharded as the real ones are."""
    shape = json.loads(_config_file(name).read_text(encoding="utf-8")) | DIFFERENT.get(name, {})
    model_type = shape.pop("model_type")
    tokenizer = make_tokenizer(texts, BOS[model_type])
    if "head_dim" in shape:  # Gemma: heads are wider together than the stream
        shape["head_dim"] = COLUMNS_OF_A_HEAD
        shape["hidden_size"] = 48
    else:
        shape["hidden_size"] = COLUMNS_OF_A_HEAD * shape["num_attention_heads"]
    shape.update(
        intermediate_size=192,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
        initializer_range=0.15,
    )
    if "query_pre_attn_scalar" in shape:
        shape["query_pre_attn_scalar"] = COLUMNS_OF_A_HEAD
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tiny_config = AutoConfig.for_model(model_type, **shape)
        model = AutoModelForCausalLM.from_config(tiny_config, dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="1MB")
    tokenizer.save_pretrained(folder)
    generation = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    generation |= GENERATION.get(model_type, {})
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    if model_type in SECOND_COPIES:
        copy = folder / SECOND_COPIES[model_type]
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(b"the same weights once more")


def make_tokenizer(texts: list[str], bos: str | None) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, which puts ``bos`` before a text if there is one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special_tokens = ["<|end|>"]
    if bos:
        special_tokens.append(bos)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special_tokens,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos} $B",
            special_tokens=[(bos, tokenizer.token_to_id(bos))],
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token="<|end|>")
