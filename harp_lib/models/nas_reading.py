"""Reads a folder of ``nemotron-nas`` and compares what runtimes will compute with the model."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from harp_lib.models.configuration_nemotron_nas import NemotronNasConfig
from harp_lib.models.plain_llama import Heads, PlainLlama
from harp_lib.models.same_logits import TOLERANCE, check_same_logits


def check_folder(folder: Path, model: PreTrainedModel, blocks_per_layer: Sequence[int]) -> None:
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
    written = PlainLlama(
        blocks=blocks,
        frequencies=LlamaRotaryEmbedding(config).inv_freq.cpu(),
        rotates_neighbours=False,
        eps=config.rms_norm_eps,
        weight=FolderTensors(folder, config).weight,
    )
    tolerance = max(TOLERANCE, 4 * torch.finfo(model.dtype).eps)
    check_same_logits(model, written, blocks_per_layer, tolerance)


class FolderTensors:
    """The tensors of a folder's safetensors, be it one file or several."""

    def __init__(self, folder: Path, config: NemotronNasConfig) -> None:
        self.config = config
        self.files: dict[str, Path] = {}  # by the name of a tensor
        for file in folder.glob("*.safetensors"):
            with safe_open(file, framework="pt") as tensors:
                self.files.update(dict.fromkeys(tensors.keys(), file))

    def weight(self, name: str) -> torch.Tensor | None:
        """A tensor in float32, or None if runtimes load none of this name."""
        if name.endswith(".bias"):
            is_ffn = ".mlp." in name
            has_biases = self.config.mlp_bias if is_ffn else self.config.attention_bias
            if not has_biases:
                return None
        if name == "lm_head.weight" and self.config.tie_word_embeddings:
            return None
        with safe_open(self.files[name], framework="pt") as tensors:
            return tensors.get_tensor(name).float()
