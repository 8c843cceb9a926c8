"""Model cards (``README.md``) of folders with a pruned model, as the hub reads them."""

import json
import shlex
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedModel

from harp_lib import config
from harp_lib.names import METHOD_TITLES
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.generation import sliced_layers
from harp_lib.pruning.layers import attends
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.remote import auto_class_of

CARD_FILE = "README.md"
TAGS = ["harp", "pruned"]
TEMPLATE = """\
---
{{ card_data }}
---

# {{ name }}

{% if base_model -%}
[{{ base_model }}](https://huggingface.co/{{ base_model }})
{%- else -%}
A model
{%- endif %}, pruned by {{ method }}. It has {{ "{:,}".format(num_parameters) }} parameters;
{{ num_caches }} of {{ plan.num_layers }} layers have a KV cache.

{%- if num_groups %}
Key/value groups removed from layers that attend: {{ num_groups }}.
{%- endif %}

{%- if num_channels %}
FFN channels removed: {{ num_channels }}.
{%- endif %}

{%- if plan.alphas %}

{{ plan.alphas | length }} of {{ plan.num_layers }} layers are value-only: they have no queries and
no keys, and where α is 0 no values and no output either. The attention branch is multiplied by α,
which is already in the weights
([High-Layer Attention Pruning with Rescaling](https://arxiv.org/abs/2507.01900)):

| layer, from the bottom (0) | α |
|---|---|
{%- for layer, alpha in plan.alphas.items() | reverse %}
| {{ layer }} | {{ "%g" | format(alpha) }} |
{%- endfor %}
{%- endif %}

## How to load it

{% if library_name == "vllm" -%}
Stock vLLM and stock MLX-LM run this folder; transformers has no class for its format,
`nemotron-nas`. Value-only layers are two blocks there, and widths are filled up with zeros.

```bash
vllm serve {{ shell_name }} --trust-remote-code
mlx_lm.generate --model {{ shell_name }} --prompt "Once upon a time"
```
{%- else -%}
```python
from transformers import {{ auto_class }}, AutoTokenizer

model = {{ auto_class }}.from_pretrained({{ python_name }}, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained({{ python_name }}, trust_remote_code=True)
```

From models of Llama's kind, `harp_lib` also writes a GGUF file for llama.cpp, Ollama and LM Studio
(`save_gguf`), and a folder for vLLM and MLX-LM (`save_nemotron_nas`). The list of these
models is in its `docs/library.md`.
{%- endif %}

"""


def model_card(model: PreTrainedModel, name: str, library: str) -> ModelCard:
    """The card of a folder ``name`` for a library of the hub, "transformers" or "vllm"."""
    plan = PruningPlan.from_dict(model.config.pruning_plan)
    auto_class = auto_class_of(model)
    head = ModelCardData(
        **_origin(model),
        library_name=library,
        pipeline_tag="text-generation" if auto_class == "AutoModelForCausalLM" else None,
        tags=TAGS,
    )
    return ModelCard.from_template(
        head,
        template_str=TEMPLATE,
        name=name,
        python_name=json.dumps(name, ensure_ascii=False),
        shell_name=shlex.quote(f"./{name}"),
        auto_class=auto_class,
        method=METHOD_TITLES.get(plan.method, plan.method),
        plan=plan,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_caches=sum(attends(layer) for layer in decoder_layers(model)),
        num_groups=sum(len(plan.layers[layer].removed_groups) for layer in sliced_layers(model)),
        num_channels=sum(len(layer.removed_channels) for layer in plan.layers.values()),
    )


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
