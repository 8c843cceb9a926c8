"""Model cards (``README.md``) of folders with a pruned model, as the hub reads them."""

from contextlib import suppress
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
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
LOADING = """\
## How to load it

```python
from transformers import {auto_class}, AutoTokenizer

model = {auto_class}.from_pretrained("{name}", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("{name}", trust_remote_code=True)
```"""
FOR_LLAMA_CPP = """\
For llama.cpp, Ollama and LM Studio, write a GGUF file:

```python
from harp_lib import load_pruned, save_gguf

save_gguf(*load_pruned("{name}"), "{name}.gguf")
```"""
FOR_VLLM = """\
For vLLM and MLX-LM, write a folder that they read without a plugin:

```python
from harp_lib import load_pruned, save_nemotron_nas

save_nemotron_nas(*load_pruned("{name}"), "{name}-nas")
```"""
NEMOTRON_NAS = """\
The format is `nemotron-nas`: {layers} layers are written as {blocks} blocks, {caches} of which \
have attention and a KV cache. Widths are filled up with zeros, which count as parameters above.

## How to load it

Stock vLLM and stock MLX-LM run this folder; transformers has no class for it.

```bash
vllm serve ./{name} --trust-remote-code
mlx_lm.generate --model ./{name} --prompt "Once upon a time"
```"""


def pruned_card(model: PreTrainedModel, name: str) -> str:
    """The card of a folder ``name`` that :func:`harp_lib.save_pruned` writes."""
    plan = PruningPlan.from_dict(model.config.pruning_plan)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    try:
        bytes_per_token = accounting.kv_bytes_per_token(model.config, plan, model.dtype)
        saved = _savings(model, num_parameters, bytes_per_token)
    except ValueError:  # an architecture whose parts are not counted
        saved = f"It has {num_parameters:,} parameters."
    auto_class = auto_class_of(model)
    sections = [saved, LOADING.format(auto_class=auto_class, name=name)]
    for check, text in ((check_gguf, FOR_LLAMA_CPP), (check_nemotron_nas, FOR_VLLM)):
        with suppress(ValueError):  # of a model that cannot be written so
            check(model)
            sections.append(text.format(name=name))
    pipeline = "text-generation" if auto_class == "AutoModelForCausalLM" else None
    return _card(model, name, "transformers", pipeline, sections)


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
    format_and_loading = NEMOTRON_NAS.format(
        name=name,
        layers=model.config.num_hidden_layers,
        blocks=len(blocks),
        caches=num_caches,
    )
    sections = [_savings(model, num_parameters, bytes_per_token), format_and_loading]
    return _card(model, name, "vllm", "text-generation", sections)


def _card(
    model: PreTrainedModel, name: str, library: str, pipeline: str | None, sections: list[str]
) -> str:
    """The YAML head that the hub reads, what was pruned, and more sections."""
    plan = PruningPlan.from_dict(model.config.pruning_plan)
    origin = _origin(model)
    head = ModelCardData(**origin, library_name=library, pipeline_tag=pipeline, tags=TAGS)
    source = "A model"
    if head.base_model is not None:
        source = f"[{head.base_model}](https://huggingface.co/{head.base_model})"
    method = METHOD_TITLES.get(plan.method, plan.method)
    body = [f"# {name}", f"{source}, pruned by {method}. {_removed(plan)}"]
    if plan.alphas:
        rows = [f"| {layer} | {alpha:g} |" for layer, alpha in reversed(plan.alphas.items())]
        body.append(
            "The attention branch of each value-only layer is multiplied by α, which is already in "
            f"its weights ({PAPER}):"
        )
        body.append("\n".join(["| layer, from the bottom (0) | α |", "|---|---|", *rows]))
    text = "\n\n".join([*body, *sections])
    return f"---\n{head.to_yaml()}\n---\n\n{text}\n"


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


def _removed(plan: PruningPlan) -> str:
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


def _savings(model: PreTrainedModel, num_parameters: int, bytes_per_token: int) -> str:
    """A table of parameters and KV cache, before and after."""
    counts = {
        "parameters": (accounting.parameters(model.config), num_parameters),
        "bytes of KV cache for each token": (
            accounting.kv_bytes_per_token(model.config, dtype=model.dtype),
            bytes_per_token,
        ),
    }
    lines = ["| | dense | here | change |", "|---|---|---|---|"]
    for title, (before, after) in counts.items():
        change = (after - before) / before
        lines.append(f"| {title} | {before:,} | {after:,} | {change:+.1%} |")
    return "\n".join(lines)
