"""Reads a GGUF file back and compares what llama.cpp will compute from it with the model."""

from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFReader, dequantize
from transformers import PreTrainedModel

from harp_lib.models.gguf_tensors import layer_tensors, outer_tensors
from harp_lib.models.plain_llama import Heads, PlainLlama
from harp_lib.models.same_logits import check_same_logits
from harp_lib.pruning.architecture import decoder_layers

NAMES = {  # in transformers' Llama, and in llama.cpp
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Relative errors of a tensor, above what rounding to the type can cost.
LARGEST_ERRORS = {
    GGMLQuantizationType.F32: 1e-6,
    GGMLQuantizationType.F16: 2e-3,
    GGMLQuantizationType.Q8_0: 3e-2,
}


def check_file(file: Path, model: PreTrainedModel) -> None:
    """Raise a ValueError if llama.cpp would compute something else from ``file`` than ``model``.

    Each tensor has to be that of the model but for rounding to its type. The logits are computed
    from the settings in the file and from the tensors before rounding, so that a wrong setting
    is not taken for the effect of rounding.
    """
    reader = GGUFReader(file)
    blocks = []
    query_heads = _setting(reader, "attention.head_count")
    value_heads = _setting(reader, "attention.head_count_kv")
    for queries, groups in zip(query_heads, value_heads, strict=True):
        blocks.append(Heads(queries, groups))
    tensors = FileTensors(reader, model)
    written = PlainLlama(
        blocks=blocks,
        frequencies=_frequencies(reader, tensors),
        rotates_neighbours=True,
        eps=_setting(reader, "attention.layer_norm_rms_epsilon"),
        weight=tensors.weight,
    )
    check_same_logits(model, written, blocks_per_layer=[1] * len(blocks))


class FileTensors:
    """The tensors of a file, compared with those of the model when they are asked for."""

    def __init__(self, reader: GGUFReader, model: PreTrainedModel) -> None:
        self.by_name = {tensor.name: tensor for tensor in reader.tensors}
        self.model = model
        self.layer = -1  # whose tensors are in `in_layer`: one layer at a time is in memory
        self.in_layer: dict[str, torch.Tensor] = {}

    def weight(self, name: str) -> torch.Tensor | None:
        """The model's tensor behind a name of transformers' Llama, or None if there is none."""
        module, _, kind = name.rpartition(".")
        if module.startswith("model.layers."):
            _, _, index, part = module.split(".", 3)
            file_name = f"blk.{index}.{NAMES[part]}.{kind}"
        else:
            file_name = f"{NAMES[module]}.{kind}"
        if file_name not in self.by_name:
            return None
        tensor = self._of_model(file_name).detach().float().cpu()
        self._compare(file_name, tensor)
        return tensor

    def read(self, file_name: str) -> torch.Tensor:
        """A tensor of the file, in float32."""
        stored = self.by_name[file_name]
        return torch.tensor(dequantize(stored.data, stored.tensor_type))

    def _of_model(self, file_name: str) -> torch.Tensor:
        if not file_name.startswith("blk."):
            return dict(outer_tensors(self.model))[file_name]
        _, index, name = file_name.split(".", 2)
        if int(index) != self.layer:
            self.layer = int(index)
            layer = decoder_layers(self.model)[self.layer]
            self.in_layer = dict(layer_tensors(layer, self.model.config.head_dim))
        return self.in_layer[name.removesuffix(".weight")]

    def _compare(self, file_name: str, expected: torch.Tensor) -> None:
        """Raise a ValueError if a tensor of the file is not ``expected`` but for rounding."""
        kind = self.by_name[file_name].tensor_type
        error = (self.read(file_name) - expected).norm() / expected.norm().clamp_min(1e-30)
        if not error <= LARGEST_ERRORS[kind]:
            raise ValueError(
                f"{file_name} as {kind.name} differs by {error:.1%} from the model's: its weights "
                'are too small, too large or not finite for this type; write them as "f32"'
            )


def _setting(reader: GGUFReader, name: str) -> Any:
    """A setting of the architecture in the file."""
    architecture = reader.fields["general.architecture"].contents()
    return reader.fields[f"{architecture}.{name}"].contents()


def _frequencies(reader: GGUFReader, tensors: FileTensors) -> torch.Tensor:
    """Rotary angles per position (Dh / 2,) that llama.cpp computes."""
    dimensions = _setting(reader, "rope.dimension_count")
    exponents = torch.arange(0, dimensions, 2, dtype=torch.float64) / dimensions
    frequencies = _setting(reader, "rope.freq_base") ** -exponents
    if "rope_freqs.weight" in tensors.by_name:
        frequencies = frequencies / tensors.read("rope_freqs.weight")
    return frequencies.float()
