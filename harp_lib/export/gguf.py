"""Writes a model as a GGUF file that unmodified llama.cpp runs, and Ollama with it.

llama.cpp's architecture ``deci`` has its own number of heads and FFN channels in each layer. A
layer with query heads but no key/value heads computes ``x + W norm(x)`` there. With W = α W_O W_V
this is a value-only layer, which caches nothing.

Symbols in shapes are those of :mod:`harp_lib.pruning.layers`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFReader,
    GGUFWriter,
    ReaderTensor,
    dequantize,
    quantize,
)
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.export.gguf_tokens import check_tokens
from harp_lib.export.gguf_vocabulary import write_vocabulary
from harp_lib.export.llamas import check_config_says_all, check_llama
from harp_lib.models.same_outputs import relative_error
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import FFN_PARTS, LoneAttention, attends, num_groups

ARCHITECTURE = "deci"
MODEL_TYPES = ("llama", "mistral")  # RMS norms before attention and FFN, a gated FFN
# Types of weights, and the largest relative error of a tensor, above what rounding to them costs.
LARGEST_ERRORS = {"f32": 1e-6, "f16": 2e-3, "q8_0": 3e-2}


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
        tokens. If the model computes something else than its config and its weights say. Nothing
        is written then.
    """
    if weights not in LARGEST_ERRORS:
        choices = ", ".join(LARGEST_ERRORS)
        raise ValueError(f"unknown type of weights {weights!r}; choose from {choices}")
    check_gguf(model)
    check_config_says_all(model)
    path = Path(os.path.expanduser(path)).resolve()
    writer = GGUFWriter(None, ARCHITECTURE)
    _add_shape(writer, model)
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        write_vocabulary(writer, tokenizer, model.config.vocab_size, Path(folder))
        for name, tensor in file_tensors(model):
            kind = _tensor_type(tensor, GGMLQuantizationType[weights.upper()])
            data = quantize(tensor.detach().float().cpu().numpy(), kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        file = Path(folder, path.name)
        writer.write_header_to_file(file)
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file(progress=True)
        writer.close()
        check_file(file, model, tokenizer)
        file.replace(path)


def check_gguf(model: PreTrainedModel) -> None:
    """Raise a ValueError, with the reason, if llama.cpp could not run ``model`` correctly."""
    check_llama(model, f"GGUF ({ARCHITECTURE})", MODEL_TYPES)
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
        value_heads.append(num_groups(attention) if attends(layer) else 0)
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


def file_tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the file: the name that llama.cpp gives it, and its weights."""
    decoder = model.get_decoder()
    yield "token_embd.weight", decoder.embed_tokens.weight
    yield "output_norm.weight", decoder.norm.weight
    if not model.config.tie_word_embeddings:
        yield "output.weight", model.lm_head.weight
    if model.config.rope_parameters["rope_type"] != "default":
        yield "rope_freqs.weight", _frequency_factors(model)
    for index, layer in enumerate(decoder_layers(model)):
        for name, tensor in _layer_tensors(layer, model.config.head_dim):
            yield f"blk.{index}.{name}.weight", tensor


def _layer_tensors(layer: nn.Module, head_dim: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Names within a block, and weights, of one decoder layer."""
    attention = layer.self_attn
    if attends(layer):
        yield "attn_norm", layer.input_layernorm.weight
        yield "attn_q", _rows_for_llama_cpp(attention.q_proj.weight, head_dim)
        yield "attn_k", _rows_for_llama_cpp(attention.k_proj.weight, head_dim)
        yield "attn_v", attention.v_proj.weight
        yield "attn_output", attention.o_proj.weight
    elif hasattr(attention, "o_proj"):  # a value-only layer; otherwise the branch is zero
        yield "attn_norm", layer.input_layernorm.weight
        yield "attn_output", _value_only_weight(attention)
    yield "ffn_norm", layer.post_attention_layernorm.weight
    for part in FFN_PARTS:
        yield f"ffn_{part.removesuffix('_proj')}", getattr(layer.mlp, part).weight


def _rows_for_llama_cpp(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of W_Q or W_K in llama.cpp's order: it rotates neighbours, not halves of a head."""
    halves = weight.unflatten(0, (-1, 2, head_dim // 2))  # (heads, 2, Dh / 2, d)
    return halves.transpose(1, 2).flatten(0, 2)  # (heads·Dh, d)


@torch.no_grad()
def _value_only_weight(attention: LoneAttention) -> torch.Tensor:
    """``W_O W_V`` (d, d) of a value-only layer, as ``o_proj.weight @ v_proj.weight``."""
    heads = (num_groups(attention), -1, attention.head_dim)
    output = attention.o_proj.weight.float().unflatten(1, heads)  # (d, K, r, Dh)
    output = output.sum(2).flatten(1)  # (d, K·Dh), the query heads of a group read the same values
    return output @ attention.v_proj.weight.float()


def _frequency_factors(model: PreTrainedModel) -> torch.Tensor:
    """Factors (Dh / 2,) by which llama.cpp divides the default rotary frequencies."""
    config = model.config
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    default_frequencies = config.rope_parameters["rope_theta"] ** -exponents
    # The model's own frequencies may be rounded to its dtype, so they are computed again.
    rotary = type(model.get_decoder().rotary_emb)(config)
    return default_frequencies / rotary.inv_freq.double().cpu()


def check_file(file: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError if ``file`` gives other tokens or holds other tensors than it should.

    Tensors may differ from those of ``model`` by what rounding to their type costs.
    """
    reader = GGUFReader(file)
    check_tokens(reader, tokenizer)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in file_tensors(model):
        _check_tensor(stored[name], tensor)


def _check_tensor(stored: ReaderTensor, expected: torch.Tensor) -> None:
    """Raise a ValueError if a tensor of the file is not ``expected`` but for rounding."""
    expected = expected.detach().float().cpu()
    kind = stored.tensor_type
    in_file = torch.tensor(dequantize(stored.data, kind))
    error = relative_error(in_file, expected)
    if not error <= LARGEST_ERRORS[kind.name.lower()]:
        raise ValueError(
            f"{stored.name} as {kind.name} differs by {error:.1%} from the model's: its weights "
            'are too small, too large or not finite for this type; write them as "f32"'
        )
