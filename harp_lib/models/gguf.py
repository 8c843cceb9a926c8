"""Writes a model as a GGUF file that unmodified llama.cpp runs, and Ollama with it.

llama.cpp's architecture ``deci`` has its own number of heads and FFN channels in each layer. A
layer with query heads but no key/value heads computes ``x + W norm(x)`` there. With W = α W_O W_V
this is a value-only layer, which caches nothing.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFWriter,
    SpecialVocab,
    TokenType,
    quantize,
)
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.models.savable import check_savable
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import FFN_PARTS, LoneAttention, group_width, num_groups

ARCHITECTURE = "deci"
MODEL_TYPES = ("llama", "mistral")  # RMS norms before attention and FFN, a gated FFN
# Rotary positions that differ from the default ones by fixed factors of the frequencies.
ROPE_TYPES = ("default", "linear", "llama3")
WEIGHTS = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "q8_0": GGMLQuantizationType.Q8_0,
}
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


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
        Byte-level BPE (Llama 3, SmolLM, GPT-2) or SentencePiece BPE (Llama 2, Mistral), with its
        chat template.
    path : str or Path
        The file to write; an earlier one is replaced.
    weights : {"f16", "f32", "q8_0"}
        Type of the matrices; vectors stay float32.

    Raises
    ------
    ValueError
        If the weights are not all that the model is (adapters, quantization, offloading), or
        ``deci`` cannot express it, with the reason: another architecture, biases (also those that
        compensate for what FLAP removes), sliding windows, other rotary positions, or another
        tokenizer. Nothing is written then.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"unknown type of weights {weights!r}; choose from {', '.join(WEIGHTS)}")
    check_gguf(model)
    path = Path(path).resolve()
    writer = GGUFWriter(None, ARCHITECTURE)
    _add_shape(writer, model)
    _add_vocabulary(writer, tokenizer, model.config.vocab_size)
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        _add_special_tokens(writer, tokenizer, Path(folder, "tokenizer"))
        for name, tensor in _tensors(model):
            kind = _tensor_type(tensor, WEIGHTS[weights])
            data = quantize(tensor.detach().float().cpu().numpy(), kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        file = Path(folder, path.name)
        writer.write_header_to_file(file)
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file(progress=True)
        writer.close()
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


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the file: the name that llama.cpp gives it, and its weights."""
    decoder = model.get_decoder()
    yield "token_embd.weight", decoder.embed_tokens.weight
    yield "output_norm.weight", decoder.norm.weight
    if not model.config.tie_word_embeddings:
        yield "output.weight", model.lm_head.weight
    if model.config.rope_parameters["rope_type"] != "default":
        yield "rope_freqs.weight", _frequency_factors(model)
    for index, layer in enumerate(decoder.layers):
        block = f"blk.{index}"
        if hasattr(layer.self_attn, "o_proj"):
            yield f"{block}.attn_norm.weight", layer.input_layernorm.weight
        for name, tensor in _attention_tensors(layer.self_attn, model.config.head_dim):
            yield f"{block}.{name}.weight", tensor
        yield f"{block}.ffn_norm.weight", layer.post_attention_layernorm.weight
        for part in FFN_PARTS:
            name = f"ffn_{part.removesuffix('_proj')}"
            yield f"{block}.{name}.weight", getattr(layer.mlp, part).weight


def _frequency_factors(model: PreTrainedModel) -> torch.Tensor:
    """Factors (Dh / 2,) by which llama.cpp divides the default rotary frequencies."""
    config = model.config
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    default_frequencies = config.rope_parameters["rope_theta"] ** -exponents
    return default_frequencies / model.get_decoder().rotary_emb.inv_freq.double().cpu()


def _attention_tensors(attention: nn.Module, head_dim: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Names within a block, and weights, of one attention module; none of skipped attention."""
    if isinstance(attention, LoneAttention):
        if hasattr(attention, "o_proj"):
            yield "attn_output", _value_only_weight(attention)
        return
    yield "attn_output", attention.o_proj.weight
    yield "attn_v", attention.v_proj.weight
    yield "attn_q", _rows_for_llama_cpp(attention.q_proj.weight, head_dim)
    yield "attn_k", _rows_for_llama_cpp(attention.k_proj.weight, head_dim)


def _value_only_weight(attention: LoneAttention) -> torch.Tensor:
    """``W_O W_V`` (d, d) of a value-only layer, as ``o_proj.weight @ v_proj.weight``."""
    heads_per_group = group_width(attention) // attention.head_dim
    values = attention.v_proj.weight.float()  # (K·Dh, d)
    values = values.unflatten(0, (-1, 1, attention.head_dim))  # (K, 1, Dh, d)
    values = values.expand(-1, heads_per_group, -1, -1)  # (K, r, Dh, d)
    values = values.flatten(0, 2)  # (H·Dh, d), each value head as often as W_O reads it
    return attention.o_proj.weight.float() @ values


def _rows_for_llama_cpp(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of W_Q or W_K in llama.cpp's order: it rotates neighbours, not halves of a head."""
    halves = weight.unflatten(0, (-1, 2, head_dim // 2))  # (heads, 2, Dh / 2, d)
    return halves.transpose(1, 2).flatten(0, 2)  # (heads·Dh, d)


def _add_vocabulary(writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Write ``size`` tokens and their types; a ValueError for a tokenizer of another kind."""
    state = _backend_state(tokenizer)
    bpe = state["model"]
    if bpe["type"] != "BPE":
        raise ValueError(f"a tokenizer of type {bpe['type']} cannot be written as GGUF; BPE can")
    tokens = [f"[PAD{index}]" for index in range(size)]
    types = [TokenType.UNUSED] * size
    for token, index in bpe["vocab"].items():
        tokens[index] = token
        is_byte = _is_sentencepiece(state) and token.startswith("<0x")
        types[index] = TokenType.BYTE if is_byte else TokenType.NORMAL
    for added in state["added_tokens"]:
        index = added["id"]
        tokens[index] = added["content"]
        types[index] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    if _is_sentencepiece(state):
        if tokenizer.unk_token_id is not None:
            types[tokenizer.unk_token_id] = TokenType.UNKNOWN
        writer.add_tokenizer_model("llama")
        writer.add_token_scores(_token_scores(tokens, bpe["merges"]))
        writer.add_add_space_prefix(_adds_space(state))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_splitting(state["pre_tokenizer"]))
    writer.add_token_list(tokens)
    writer.add_token_types(types)


def _add_special_tokens(
    writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    """Write ids of special tokens, chat template and byte-level merges, as llama.cpp reads them.

    The tokenizer is saved to ``folder``, from which the ``gguf`` package reads.
    """
    tokenizer.save_pretrained(folder)
    special = SpecialVocab(
        folder,
        load_merges=not _is_sentencepiece(_backend_state(tokenizer)),
        special_token_types=("bos", "eos", "pad"),
    )
    # What the tokenizer does counts, whatever its files say.
    adds_bos = tokenizer.bos_token_id in tokenizer("a").input_ids[:1]
    special.add_special_token = {"bos": adds_bos}
    special.add_to_gguf(writer, quiet=True)


def _backend_state(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The content of ``tokenizer.json``."""
    return json.loads(tokenizer.backend_tokenizer.to_str())


def _is_sentencepiece(state: dict[str, Any]) -> bool:
    """Whether a BPE tokenizer falls back to tokens for single bytes, as SentencePiece does."""
    return bool(state["model"].get("byte_fallback"))


def _token_scores(tokens: list[str], merges: list[list[str]]) -> list[float]:
    """A score for each token, higher the earlier it is merged: SentencePiece's form of merges."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault("".join(merge).replace(" ", ""), rank)
    return [-float(ranks.get(token, len(merges))) for token in tokens]


def _adds_space(state: dict[str, Any]) -> bool:
    """Whether the tokenizer puts a space before the text."""
    steps = json.dumps([state["normalizer"], state["pre_tokenizer"]])
    return any(mark in steps for mark in ("Prepend", '"always"', '"first"'))


def _splitting(pre_tokenizer: dict[str, Any] | None) -> str:
    """llama.cpp's name for the way in which text is split into words."""
    steps = []
    if pre_tokenizer:
        steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"] and steps[0]["use_regex"]:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and steps[0]["individual_digits"]:
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and steps[0]["pattern"].get("Regex") == LLAMA3_WORDS:
        return "llama-bpe"
    raise ValueError(
        f"a tokenizer that splits words by {kinds or 'nothing'} cannot be written as GGUF"
    )
