"""Writes a pruned model as ``nemotron-nas``, which stock vLLM and stock MLX-LM run.

The format describes each block by itself, so layers without queries and keys have no KV cache. How
a layer becomes blocks is in :mod:`harp_lib.models.nas_blocks`.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from harp_lib.models import configuration_nemotron_nas
from harp_lib.models.card import CARD_FILE, model_card
from harp_lib.models.checkpoint import complete_or_nothing
from harp_lib.models.configuration_nemotron_nas import NemotronNasConfig
from harp_lib.models.nas_blocks import (
    Block,
    Tensors,
    blocks_of,
    check_nemotron_nas,
    has_biases,
)
from harp_lib.models.plain_llama import Heads, PlainLlama
from harp_lib.models.registry import quiet
from harp_lib.models.same_logits import TOLERANCE, check_same_logits

COPIED_FIELDS = (
    "bos_token_id",
    "eos_token_id",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "pad_token_id",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "vocab_size",
)


def save_nemotron_nas(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, path: str | Path
) -> None:
    """Write a pruned model as a folder that stock vLLM and stock MLX-LM run.

    The folder appears complete or not at all. It is served by
    ``vllm serve PATH --trust-remote-code`` and by ``mlx_lm.server --model PATH``; transformers has
    no such model class.

    Parameters
    ----------
    model : PreTrainedModel
        A Llama, Mistral or Qwen2 model that :func:`harp_lib.apply_plan` pruned by any plan in which
        layer 0 keeps attention. Its dtype is kept.
    tokenizer : PreTrainedTokenizerBase, optional
        Its tokenizer, or None: the folder then holds none.
    path : str or Path
        The folder to write, which must not exist or be empty.

    Raises
    ------
    ValueError
        If the weights are not all that the model is (adapters, quantization, offloading), the model
        is not pruned, its generation config is invalid, or ``nemotron-nas`` cannot express it, with
        the reason: another architecture, a layer 0 without attention, sliding windows, other rotary
        positions. If the logits that follow from the files are not those of the model. Nothing is
        written then.
    FileExistsError
        If ``path`` exists and is not an empty folder.
    """
    check_nemotron_nas(model)
    path = Path(os.path.expanduser(path)).resolve()
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"{path} exists and is not an empty folder; choose another folder")
    blocks = blocks_of(model)
    with complete_or_nothing(path) as folder, quiet():
        _write_config(folder, model, blocks)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        model_card(model, path.name, "vllm").save(folder / CARD_FILE)
        save_torch_state_dict(_state_dict(model, blocks), folder, metadata={"format": "pt"})
        check_folder(folder, model)


def _write_config(folder: Path, model: PreTrainedModel, blocks: list[Block]) -> None:
    """Write ``config.json``, and the file of the class that it names."""
    values: dict[str, Any] = {name: getattr(model.config, name) for name in COPIED_FIELDS}
    # MLX-LM reads the older fields of rotary positions, vLLM those of today.
    rope = model.config.rope_parameters
    values["rope_theta"] = rope["rope_theta"]
    values["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    source = Path(configuration_nemotron_nas.__file__)
    values.update(
        architectures=["DeciLMForCausalLM"],
        auto_map={"AutoConfig": f"{source.stem}.{NemotronNasConfig.__name__}"},
        model_type=NemotronNasConfig.model_type,
        dtype=str(model.dtype).removeprefix("torch."),
        attention_bias=has_biases(blocks, "self_attn"),
        mlp_bias=has_biases(blocks, "mlp"),
        num_hidden_layers=len(blocks),
        block_configs=[block.settings for block in blocks],
    )
    text = json.dumps(values, indent=2, sort_keys=True)
    (folder / "config.json").write_text(f"{text}\n", encoding="utf-8")
    shutil.copyfile(source, folder / source.name)


def _state_dict(model: PreTrainedModel, blocks: list[Block]) -> Tensors:
    """All weights of the folder, by the names that runtimes know."""
    decoder = model.get_decoder()
    weights = {
        "model.embed_tokens.weight": decoder.embed_tokens.weight.detach(),
        "model.norm.weight": decoder.norm.weight.detach(),
    }
    if not model.config.tie_word_embeddings:
        weights["lm_head.weight"] = model.lm_head.weight.detach()
    for index, block in enumerate(blocks):
        for name, tensor in block.tensors.items():
            weights[f"model.layers.{index}.{name}"] = tensor.detach()
    # The writer takes parts of one piece of memory, such as fused projections, for one tensor.
    for name, tensor in weights.items():
        if tensor.untyped_storage().nbytes() > tensor.nbytes:
            weights[name] = tensor.clone()
    return weights


def check_folder(folder: Path, model: PreTrainedModel) -> None:
    """Raise a ValueError if runtimes would compute something else from ``folder`` than ``model``.

    Settings and tensors are those of the files. In bfloat16 and float16 the sums over the query
    heads of a group are rounded, so logits may differ by more there.
    """
    config = NemotronNasConfig.from_pretrained(folder)
    blocks = []
    for block in config.block_configs:
        heads = Heads(0, 0)
        if not block.attention.no_op:
            groups = config.num_attention_heads // block.attention.n_heads_in_group
            heads = Heads(config.num_attention_heads, groups)
        blocks.append(heads)
    file_of = {}  # the open file that holds each tensor: a large model has several
    for path in folder.glob("*.safetensors"):
        file = safe_open(path, framework="pt")
        file_of.update(dict.fromkeys(file.keys(), file))

    def weight(name: str) -> torch.Tensor | None:
        """A tensor in float32, or None if runtimes load none of this name."""
        if name == "lm_head.weight" and config.tie_word_embeddings:
            return None
        if name.endswith(".bias"):
            has_bias = config.mlp_bias if ".mlp." in name else config.attention_bias
            if not has_bias:
                return None
        return file_of[name].get_tensor(name).float()

    written = PlainLlama(
        blocks=blocks,
        frequencies=LlamaRotaryEmbedding(config).inv_freq.cpu(),
        rotates_neighbours=False,
        eps=config.rms_norm_eps,
        weight=weight,
    )
    tolerance = max(TOLERANCE, 4 * torch.finfo(model.dtype).eps)
    check_same_logits(model, written, tolerance)
