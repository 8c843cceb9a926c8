"""A tiny random model of every causal family of transformers, with what is special about it."""

import re

import torch
from helpers import VISION
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

LARGEST = 20_000_000  # parameters; what is larger does not take SHAPE

# Names that the config of a family does not have are left out.
SHAPE = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "is_decoder": True,
    "sliding_window": 16,
    # Experts
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    # Latent attention
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    # Other names for width and depth
    "d_model": 64,
    "ffn_dim": 96,
    "decoder_layers": 4,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "attention_heads": 4,
    "num_layers": 4,
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 512,
    "word_embed_proj_dim": 64,
}
PER_LAYER_INPUTS = {"vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 16}
STATE_SPACE = {
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
    "mamba_expand": 1,
}
WINDOWS = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}
# What is special about a family and off by default, or at a size that tiny models do not show. A
# name with a comma is a row of its own, beside that of the family.
PARTICULARS = {
    "bailing_hybrid": {"layer_group_size": 2},
    "bamba": {"attn_layer_indices": [1, 3], **STATE_SPACE},
    "codegen": {"rotary_dim": 8},
    "cohere": {"logit_scale": 0.25, "use_qk_norm": True},
    "cohere2": {"logit_scale": 0.25},
    "cohere_compass_text": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e4},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        }
    },
    "dbrx": {
        "n_heads": 4,
        "n_layers": 4,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 2.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "exaone4": {"sliding_window_pattern": 2},
    "falcon_h1": STATE_SPACE,
    "gemma2": {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 5.0},
    "gemma3_text": {"final_logit_softcapping": 5.0, "rope_local_base_freq": 100.0},
    "gemma3n_text": {"num_kv_shared_layers": 2, "laurel_rank": 8, **PER_LAYER_INPUTS},
    "gemma4_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        **PER_LAYER_INPUTS,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 16},
    "glm": {"partial_rotary_factor": 0.5},
    "gpt_neox": {"use_parallel_residual": True},
    "gptj": {"rotary_dim": 8},
    "granite": {
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.1,
    },
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, **STATE_SPACE},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, **STATE_SPACE},
    "granitemoe": {
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
    },
    "hyperclovax": {"use_post_norm": True, "residual_multiplier": 0.5},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "llama, with biases": {"attention_bias": True, "mlp_bias": True},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "llama4_text": {"attention_chunk_size": 16, "no_rope_layers": [1, 1, 1, 0]},
    "mamba2": {"num_heads": 8, "state_size": 16, "n_groups": 1, "chunk_size": 16},
    "minicpm3": {"scale_emb": 3.0, "scale_depth": 1.4},
    "mistral, without a window": {"sliding_window": None},
    "olmo, with clipped values": {"clip_qkv": 2.0},
    "phi": {"qk_layernorm": True, "partial_rotary_factor": 0.5},
    "qwen2, with windows": WINDOWS,
    "qwen3, with windows": WINDOWS,
    "smollm3": {"no_rope_layers": [1, 1, 1, 0], "use_sliding_window": False},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "stablelm": {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True},
    "starcoder2": {"use_bias": True},
}
IDS = 5 + torch.arange(2 * 40).reshape(2, 40) * 37 % 500  # longer than the sliding window


def all_rows() -> list[str]:
    """The families, each followed by its variants."""
    variants = [name for name in PARTICULARS if "," in name]
    return sorted([*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *variants])


def build(row: str) -> PreTrainedModel:
    """A random model of a row with 4 layers; an exception of any kind if there is none."""
    family = row.split(",")[0]
    values = dict(SHAPE)
    for _ in SHAPE:
        try:
            settings = _accepted(family, values) | PARTICULARS.get(row, {})
            model_config = AutoConfig.for_model(family, **settings)
            with torch.device("meta"):
                num_parameters = AutoModelForCausalLM.from_config(model_config).num_parameters()
            break
        except Exception as error:
            # A value that does not fit here is named in the message.
            unfit = [name for name in values if re.search(rf"\b{name}\b", str(error))]
            if not unfit:
                raise
            del values[unfit[0]]
    if num_parameters > LARGEST:
        raise ValueError(f"{num_parameters:,} parameters")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(model_config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        model(IDS)  # the shape may not suit the family
    return model


def _accepted(family: str, values: dict) -> dict:
    """The values whose names the config of a family has, its parts for other inputs made small."""
    default = AutoConfig.for_model(family)
    accepted = {name: value for name, value in values.items() if _has(default, name)}
    if _has(default, "kv_lora_rank") and "num_key_value_heads" in accepted:
        accepted["num_key_value_heads"] = SHAPE["num_attention_heads"]
    if getattr(default, "sliding_window", None) is None:
        accepted.pop("sliding_window", None)
    if default.get_text_config() is not default:
        text = default.get_text_config()
        accepted["text_config"] = {
            name: value for name, value in values.items() if _has(text, name)
        }
    if isinstance(getattr(default, "vision_config", None), PreTrainedConfig):
        accepted["vision_config"] = VISION
    return accepted


def _has(default: PreTrainedConfig, name: str) -> bool:
    """Whether a config has a value of this name that holds for all layers."""
    try:
        return hasattr(default, name)
    except Exception:  # XLNet has no length, and some configs have values for each layer
        return False
