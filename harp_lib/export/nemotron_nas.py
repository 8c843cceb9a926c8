"""Writes a pruned model as ``nemotron-nas``, which stock vLLM and stock MLX-LM run.

The format describes each block by itself, so layers without queries and keys have no KV cache. How
a layer becomes blocks is in :mod:`harp_lib.export.nas_blocks`.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import save_torch_state_dict
from safetensors import safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.export import configuration_nemotron_nas
from harp_lib.export.configuration_nemotron_nas import NemotronNasConfig
from harp_lib.export.llamas import check_config_says_all
from harp_lib.export.nas_blocks import (
    Block,
    Tensors,
    blocks_of,
    check_nemotron_nas,
    has_biases,
)
from harp_lib.models.card import CARD_FILE, model_card
from harp_lib.models.checkpoint import complete_or_nothing
from harp_lib.models.registry import quiet

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
        positions. If the model computes something else than its config and its weights say. Nothing
        is written then.
    FileExistsError
        If ``path`` exists and is not an empty folder.
    """
    check_nemotron_nas(model)
    check_config_says_all(model)
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
        weights = _state_dict(model, blocks)
        save_torch_state_dict(weights, folder, metadata={"format": "pt"})
        _check_files(folder, weights)


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


def _check_files(folder: Path, weights: Tensors) -> None:
    """Raise a ValueError if the files lack a tensor, or have one of another name or shape."""
    written = {}
    for path in folder.glob("*.safetensors"):  # a large model has several
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            for name in names:
                written[name] = tuple(file.get_slice(name).get_shape())
    expected = {name: tuple(weight.shape) for name, weight in weights.items()}
    if written != expected:
        name, _ = min(written.items() ^ expected.items())
        raise ValueError(
            f"{name} is {written.get(name, 'missing')} in the files, where the model has "
            f"{expected.get(name, 'nothing')}"
        )
