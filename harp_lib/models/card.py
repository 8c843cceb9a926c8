"""Model cards (``README.md``) of folders with a pruned model, as the hub reads them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard
from transformers import PreTrainedModel

from harp_lib import accounting, config
from harp_lib.models.gguf import check_gguf
from harp_lib.models.nas_blocks import Block, check_nemotron_nas
from harp_lib.names import METHOD_TITLES
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.remote import auto_class_of

CARD_FILE = "README.md"
PAPER = "[High-Layer Attention Pruning with Rescaling](https://arxiv.org/abs/2507.01900)"
TAGS = ["harp", "pruned"]
PIPELINES = {  # the hub's name of what a class is for
    "AutoModel": "feature-extraction",
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForQuestionAnswering": "question-answering",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
}


def pruned_card(model: PreTrainedModel, name: str) -> str:
    """The card of a folder ``name`` that :func:`harp_lib.save_pruned` writes."""
    sections = _common_sections(model, name)
    sections.append(_saved_by_pruning(model))
    auto_class = auto_class_of(model)
    sections.append(
        "## How to load it\n\n"
        "```python\n"
        f"from transformers import {auto_class}, AutoTokenizer\n\n"
        f'model = {auto_class}.from_pretrained("{name}", trust_remote_code=True)\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{name}", trust_remote_code=True)\n'
        "```"
    )
    if _passes(check_gguf, model):
        sections.append(
            "For llama.cpp, Ollama and LM Studio, write a GGUF file:\n\n"
            "```python\n"
            "from harp_lib import load_pruned, save_gguf\n\n"
            f'save_gguf(*load_pruned("{name}"), "{name}.gguf")\n'
            "```"
        )
    if _passes(check_nemotron_nas, model):
        sections.append(
            "For vLLM and MLX-LM, write a folder that they read without a plugin:\n\n"
            "```python\n"
            "from harp_lib import load_pruned, save_nemotron_nas\n\n"
            f'save_nemotron_nas(*load_pruned("{name}"), "{name}-nas")\n'
            "```"
        )
    return _with_head(model, "transformers", PIPELINES.get(auto_class), sections)


def nemotron_nas_card(
    model: PreTrainedModel, name: str, num_parameters: int, blocks: list[Block]
) -> str:
    """The card of a folder ``name`` that :func:`harp_lib.save_nemotron_nas` writes."""
    num_caches = 0
    bytes_per_token = 0
    for block in blocks:
        if "self_attn.k_proj.weight" in block.tensors:
            keys = block.tensors["self_attn.k_proj.weight"]
            num_caches += 1
            bytes_per_token += 2 * len(keys) * keys.dtype.itemsize  # keys and values
    layers = model.config.num_hidden_layers
    saved = _saved(model, num_parameters, bytes_per_token)
    sections = [*_common_sections(model, name), saved]
    sections.append(
        f"The format is `nemotron-nas`: {layers} layers are written as {len(blocks)} blocks, "
        f"{num_caches} of which have attention and a KV cache. Widths are filled up with zeros, "
        "which count as parameters above."
    )
    sections.append(
        "## How to load it\n\n"
        "Stock vLLM and stock MLX-LM run this folder; transformers has no class for it.\n\n"
        "```bash\n"
        f"vllm serve ./{name} --trust-remote-code\n"
        f'mlx_lm.generate --model ./{name} --prompt "Once upon a time"\n'
        "```"
    )
    return _with_head(model, "vllm", PIPELINES["AutoModelForCausalLM"], sections)


def _with_head(
    model: PreTrainedModel, library: str, pipeline: str | None, sections: list[str]
) -> str:
    """A card of these sections, with the YAML head that the hub reads."""
    head: dict[str, Any] = {**_origin(model), "library_name": library}
    if pipeline is not None:
        head["pipeline_tag"] = pipeline
    head["tags"] = TAGS
    body = "\n\n".join(sections)
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n{body}\n"


def _origin(model: PreTrainedModel) -> dict[str, str]:
    """``base_model`` and ``license``, as far as they are known."""
    source = model.config.name_or_path
    folder = Path(source)
    if folder.parent == config.MODELS:
        fields = config.NAMED_MODELS.get(folder.name, {})
    elif source and (folder / CARD_FILE).is_file():
        fields = ModelCard.load(folder / CARD_FILE, ignore_metadata_errors=True).data.to_dict()
        if TAGS[0] not in fields.get("tags", []):
            return {}  # the card of a dense model names what that one was made from
    elif config.HUB_ID.fullmatch(source) and not folder.exists():
        fields = {"base_model": source}
    else:
        fields = {}
    return {key: fields[key] for key in ("base_model", "license") if key in fields}


def _common_sections(model: PreTrainedModel, name: str) -> list[str]:
    """The title, what was pruned, and alpha of each value-only layer."""
    plan = PruningPlan.from_dict(model.config.pruning_plan)
    method = METHOD_TITLES.get(plan.method, plan.method)
    base_model = _origin(model).get("base_model")
    origin = f"[{base_model}](https://huggingface.co/{base_model})" if base_model else "A model"
    sections = [f"# {name}", f"{origin}, pruned by {method}. {_removed(model, plan)}"]
    if plan.alphas:
        rows = [f"| {layer} | {alpha:g} |" for layer, alpha in reversed(plan.alphas.items())]
        sections.append(
            "The attention branch of each value-only layer is multiplied by α, which is already in "
            f"its weights ({PAPER}):"
        )
        sections.append("\n".join(["| layer, from the bottom (0) | α |", "|---|---|", *rows]))
    return sections


def _removed(model: PreTrainedModel, plan: PruningPlan) -> str:
    """What the plan removes, as sentences."""
    sentences = []
    if plan.alphas:
        sentences.append(
            f"{len(plan.alphas)} of {plan.num_layers} layers are value-only: they have no queries, "
            "no keys and no KV cache."
        )
    num_skipped = sum(alpha == 0 for alpha in plan.alphas.values())
    if num_skipped:
        sentences.append(f"Where α is 0 ({num_skipped}), values and output are gone too.")
    num_groups = sum(len(layer.removed_groups) for layer in plan.layers.values())
    if num_groups:
        sentences.append(f"Key/value groups removed from layers that attend: {num_groups}.")
    num_channels = sum(len(layer.removed_channels) for layer in plan.layers.values())
    if num_channels:
        sentences.append(f"FFN channels removed: {num_channels}.")
    return " ".join(sentences) or "Nothing is removed."


def _saved_by_pruning(model: PreTrainedModel) -> str:
    """What is saved, counted from the config and the plan; empty for an uncounted architecture."""
    plan = PruningPlan.from_dict(model.config.pruning_plan)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    try:
        bytes_per_token = accounting.kv_bytes_per_token(model.config, plan, model.dtype)
    except ValueError:
        return f"It has {num_parameters:,} parameters."
    return _saved(model, num_parameters, bytes_per_token)


def _saved(model: PreTrainedModel, num_parameters: int, bytes_per_token: int) -> str:
    """A table of parameters and KV cache, before and after."""
    dense_parameters = accounting.parameters(model.config)
    dense_bytes = accounting.kv_bytes_per_token(model.config, dtype=model.dtype)
    return "\n".join(
        [
            "| | dense | here | change |",
            "|---|---|---|---|",
            _comparison("parameters", dense_parameters, num_parameters),
            _comparison("bytes of KV cache for each token", dense_bytes, bytes_per_token),
        ]
    )


def _comparison(title: str, before: int, after: int) -> str:
    return f"| {title} | {before:,} | {after:,} | {(after - before) / before:+.1%} |"


def _passes(check: Callable[[PreTrainedModel], None], model: PreTrainedModel) -> bool:
    """Whether ``check`` raises no ValueError for ``model``."""
    try:
        check(model)
    except ValueError:
        return False
    return True
