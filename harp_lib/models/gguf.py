"""Writes a model as a GGUF file that unmodified llama.cpp runs, and Ollama with it.

llama.cpp's architecture ``deci`` has its own number of heads and FFN channels in each layer. A
layer with query heads but no key/value heads computes ``x + W norm(x)`` there. With W = α W_O W_V
this is a value-only layer, which caches nothing.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quantize
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.models.gguf_reading import check_file
from harp_lib.models.gguf_tensors import file_tensors
from harp_lib.models.gguf_vocabulary import write_vocabulary
from harp_lib.models.savable import check_savable
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import num_groups

ARCHITECTURE = "deci"
MODEL_TYPES = ("llama", "mistral")  # RMS norms before attention and FFN, a gated FFN
# Rotary positions that differ from the default ones by fixed factors of the frequencies.
ROPE_TYPES = ("default", "linear", "llama3")
WEIGHTS = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "q8_0": GGMLQuantizationType.Q8_0,
}


def save_gguf(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    path: str | Path,
    weights: str = "f16",
) -> None:
    """Write a model to a GGUF file, which appears complete or not at all.

    Parameters
    ----------
    model : PreTrainedModel
        A Llama or Mistral model, dense or pruned by :func:`harp_lib.apply_plan`.
    tokenizer : PreTrainedTokenizerBase
        Byte-level BPE (Llama 3, SmolLM, GPT-2) or SentencePiece BPE (Llama 2 and Mistral, as their
        ``tokenizer.json`` has it), with its chat template.
    path : str or Path
        The file to write; an earlier one is replaced.
    weights : {"f16", "f32", "q8_0"}
        Type of the matrices; vectors stay float32.

    Raises
    ------
    ValueError
        If the weights are not all that the model is (adapters, quantization, offloading), or
        ``deci`` cannot express it, with the reason: another architecture, biases (also those that
        compensate for what FLAP removes), sliding windows, or other rotary positions. If the
        tokenizer has more tokens than the model has embeddings, or llama.cpp would give other
        tokens. If the logits that follow from the file are not those of the model. Nothing is
        written then.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"unknown type of weights {weights!r}; choose from {', '.join(WEIGHTS)}")
    check_gguf(model)
    path = Path(path).resolve()
    writer = GGUFWriter(None, ARCHITECTURE)
    _add_shape(writer, model)
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        write_vocabulary(writer, tokenizer, model.config.vocab_size, Path(folder))
        for name, tensor in file_tensors(model):
            kind = _tensor_type(tensor, WEIGHTS[weights])
            data = quantize(tensor.detach().float().cpu().numpy(), kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        file = Path(folder, path.name)
        writer.write_header_to_file(file)
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file(progress=True)
        writer.close()
        check_file(file, model)
        file.replace(path)


def check_gguf(model: PreTrainedModel) -> None:
    """Raise a ValueError, with the reason, if llama.cpp could not run ``model`` correctly."""
    check_savable(model)
    config = model.config
    model_type = config.model_type.removeprefix("harp_")
    if model_type not in MODEL_TYPES or config.hidden_act != "silu":
        raise ValueError(
            f"{model_type} models cannot be written as GGUF; {' and '.join(MODEL_TYPES)} can"
        )
    if getattr(config, "sliding_window", None):
        raise ValueError(
            f"a sliding window of {config.sliding_window} tokens has no place in {ARCHITECTURE}"
        )
    rope_type = config.rope_parameters["rope_type"]
    if rope_type not in ROPE_TYPES:
        raise ValueError(
            f"rotary positions of type {rope_type!r} cannot be written; {', '.join(ROPE_TYPES)} can"
        )
    biases = [name for name, _ in model.named_parameters() if name.endswith("bias")]
    if biases:
        raise ValueError(
            f"{len(biases)} biases, {biases[0]} for one, have no place in {ARCHITECTURE}: plans "
            "that make up for what they remove (flap, harp+flap) cannot be written; harp, mag-sp, "
            "wanda-sp and llm-pruner can"
        )


def _add_shape(writer: GGUFWriter, model: PreTrainedModel) -> None:
    """Write the sizes of the model, with heads and FFN channels of each layer."""
    config = model.config
    layers = decoder_layers(model)
    query_heads = []
    value_heads = []
    for layer in layers:
        attention = layer.self_attn
        has_output = hasattr(attention, "o_proj")
        query_heads.append(attention.o_proj.in_features // config.head_dim if has_output else 0)
        value_heads.append(num_groups(attention) if hasattr(attention, "k_proj") else 0)
    writer.add_block_count(len(layers))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_vocab_size(config.vocab_size)
    writer.add_head_count(query_heads)
    writer.add_head_count_kv(value_heads)
    writer.add_feed_forward_length([layer.mlp.down_proj.in_features for layer in layers])
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _tensor_type(tensor: torch.Tensor, weights: GGMLQuantizationType) -> GGMLQuantizationType:
    """The type of a tensor in the file: ``weights`` for matrices, float32 for vectors."""
    kind = weights if tensor.ndim == 2 else GGMLQuantizationType.F32
    block_size, _ = GGML_QUANT_SIZES[kind]
    if tensor.shape[-1] % block_size != 0:  # the blocks do not fill the rows
        return GGMLQuantizationType.F16
    return kind
