"""A model as a GGUF file that stock llama.cpp runs, and with it Ollama.

llama.cpp's architecture ``deci`` counts heads and FFN channels layer by layer. A layer with query
heads but no key/value heads is ``x + W norm(x)`` there: with W = α W_O W_V that is a value-only
layer, which caches nothing.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, TokenType, quantize
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.layers import FFN_PARTS, LoneAttention, group_width, num_groups

ARCHITECTURE = "deci"
MODEL_TYPES = ("llama", "mistral")  # RMS norms before attention and FFN, a gated FFN
ROPE_TYPES = (
    "default",
    "linear",
    "llama3",
)  # rotary positions that fixed factors of the frequencies express
WEIGHTS = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "q8_0": GGMLQuantizationType.Q8_0,
}
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = TokenType


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
        Of Llama's or Mistral's kind, dense or as :func:`harp_lib.apply_plan` left it.
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
        For what ``deci`` cannot express, by name: another architecture, biases (also those that
        make up for what FLAP removes), sliding windows, other rotary positions, another tokenizer.
        Nothing is written then.
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
        for name, tensor in _tensors(model):
            kind = WEIGHTS[weights] if tensor.ndim == 2 else GGMLQuantizationType.F32
            if (
                tensor.shape[-1] % GGML_QUANT_SIZES[kind][0]
            ):  # rows that blocks of weights do not fill
                kind = GGMLQuantizationType.F16
            writer.add_tensor(
                name, quantize(tensor.detach().float().cpu().numpy(), kind), raw_dtype=kind
            )
        writer.write_header_to_file(Path(folder, path.name))
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file(progress=True)
        writer.close()
        Path(folder, path.name).replace(path)


def check_gguf(model: PreTrainedModel) -> None:
    """ValueError, with the reason, for what llama.cpp would run wrongly, or not at all."""
    config, kind = model.config, model.config.model_type.removeprefix("harp_")
    if kind not in MODEL_TYPES or config.hidden_act != "silu":
        raise ValueError(
            f"{kind} models cannot be written as GGUF; {' and '.join(MODEL_TYPES)} can"
        )
    if getattr(config, "sliding_window", None):
        raise ValueError(
            f"a sliding window of {config.sliding_window} tokens has no place in {ARCHITECTURE}"
        )
    rope = config.rope_parameters["rope_type"]
    if rope not in ROPE_TYPES:
        raise ValueError(
            f"rotary positions of type {rope!r} cannot be written; {', '.join(ROPE_TYPES)} can"
        )
    if biased := [name for name, _ in model.named_parameters() if name.endswith("bias")]:
        raise ValueError(
            f"{len(biased)} biases, {biased[0]} for one, have no place in {ARCHITECTURE}: plans that make up for what "
            "they remove (flap, harp+flap) cannot be written; harp, mag-sp, wanda-sp and llm-pruner can"
        )


def _add_shape(writer: GGUFWriter, model: PreTrainedModel) -> None:
    config, layers, head_dim = model.config, decoder_layers(model), model.config.head_dim
    attentions = [layer.self_attn for layer in layers]
    writer.add_block_count(len(layers))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_vocab_size(config.vocab_size)
    writer.add_head_count(
        [a.o_proj.in_features // head_dim if hasattr(a, "o_proj") else 0 for a in attentions]
    )
    writer.add_head_count_kv([num_groups(a) if hasattr(a, "k_proj") else 0 for a in attentions])
    writer.add_feed_forward_length([layer.mlp.down_proj.in_features for layer in layers])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Names that llama.cpp knows, and weights."""
    decoder, config = model.get_decoder(), model.config
    yield "token_embd.weight", decoder.embed_tokens.weight
    yield "output_norm.weight", decoder.norm.weight
    if not config.tie_word_embeddings:
        yield "output.weight", model.lm_head.weight
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    factors = (
        config.rope_parameters["rope_theta"] ** -exponents
        / decoder.rotary_emb.inv_freq.double().cpu()
    )
    if config.rope_parameters["rope_type"] != "default":
        yield (
            "rope_freqs.weight",
            factors,
        )  # (Dh / 2,): llama.cpp divides each frequency by its factor
    for index, layer in enumerate(decoder.layers):
        attention, block = layer.self_attn, f"blk.{index}"
        if hasattr(attention, "o_proj"):
            output = attention.o_proj.weight
            if isinstance(
                attention, LoneAttention
            ):  # W = W_O W_V (d, d), with each value head where it is read
                value = attention.v_proj.weight.float().unflatten(
                    0, (-1, 1, config.head_dim)
                )  # (K, 1, Dh, d)
                value = value.expand(-1, group_width(attention) // config.head_dim, -1, -1).flatten(
                    0, 2
                )  # (H·Dh, d)
                output = output.float() @ value
            yield f"{block}.attn_norm.weight", layer.input_layernorm.weight
            yield f"{block}.attn_output.weight", output
        if hasattr(attention, "k_proj"):
            yield f"{block}.attn_v.weight", attention.v_proj.weight
            for part in "qk":
                rows = getattr(attention, f"{part}_proj").weight.unflatten(
                    0, (-1, 2, config.head_dim // 2)
                )
                # llama.cpp rotates neighbours, transformers the two halves of a head
                yield f"{block}.attn_{part}.weight", rows.transpose(1, 2).flatten(0, 2)
        yield f"{block}.ffn_norm.weight", layer.post_attention_layernorm.weight
        for part in FFN_PARTS:
            yield (
                f"{block}.ffn_{part.removesuffix('_proj')}.weight",
                getattr(layer.mlp, part).weight,
            )


def _add_vocabulary(writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    found = json.loads(tokenizer.backend_tokenizer.to_str())
    if found["model"]["type"] != "BPE":
        raise ValueError(
            f"a tokenizer of type {found['model']['type']} cannot be written as GGUF; BPE can"
        )
    vocabulary, sentencepiece = found["model"]["vocab"], found["model"].get("byte_fallback")
    tokens, kinds = [f"[PAD{index}]" for index in range(size)], [UNUSED] * size
    for token, index in vocabulary.items():
        tokens[index], kinds[index] = (
            token,
            BYTE if sentencepiece and token.startswith("<0x") else NORMAL,
        )
    for added in found["added_tokens"]:
        tokens[added["id"]], kinds[added["id"]] = (
            added["content"],
            CONTROL if added["special"] else USER_DEFINED,
        )
    merges = [" ".join(merge) for merge in found["model"]["merges"]]
    if sentencepiece:
        if tokenizer.unk_token_id is not None:
            kinds[tokenizer.unk_token_id] = UNKNOWN
        ranks = {merge.replace(" ", ""): rank for rank, merge in reversed([*enumerate(merges)])}
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([-float(ranks.get(token, len(merges))) for token in tokens])
        said = json.dumps([found["normalizer"], found["pre_tokenizer"]])
        writer.add_add_space_prefix("Prepend" in said or '"always"' in said or '"first"' in said)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_splitting(found["pre_tokenizer"]))
        writer.add_token_merges(merges)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    for name in ("bos", "eos", "pad"):
        if (index := getattr(tokenizer, f"{name}_token_id")) is not None:
            getattr(writer, f"add_{name}_token_id")(index)
    writer.add_add_bos_token(tokenizer.bos_token_id in tokenizer("a").input_ids[:1])
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _splitting(pre_tokenizer: dict) -> str:
    """What llama.cpp calls the way in which text is split into words."""
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer]) if pre_tokenizer else []
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
