"""What is known to be covered: settings, generation defaults, and models; HFLM does the rest.

Each function returns what is in the way, as the end of a sentence, or None.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from .masks import IMPLEMENTATIONS

# Arguments of HFLM that PrefixLM follows. They choose the model or the tokens, or are read here.
FOLLOWED_ARGUMENTS = {
    "pretrained",
    "backend",
    "revision",
    "subfolder",
    "tokenizer",
    "truncation",
    "logits_cache",
    "max_length",
    "device",
    "dtype",
    "softmax_dtype",
    "batch_size",
    "max_batch_size",
    "trust_remote_code",
    "use_fast_tokenizer",
    "add_bos_token",
    "prefix_token_id",
    "parallelize",
    "max_memory_per_gpu",
    "max_cpu_memory",
    "offload_folder",
    "delta",
    "gguf_file",
    "enable_thinking",
    "chat_template_args",
}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


# Settings of a request, as lm-eval normalizes them, and the values with which decoding is greedy.
FOLLOWED_SETTINGS: dict[str, Callable[[Any], bool]] = {
    "until": lambda value: all(isinstance(stop, str) for stop in value),
    "max_gen_toks": _is_count,
    "do_sample": lambda value: value is False,
    "temperature": lambda value: True,  # of no effect without sampling
    "min_new_tokens": _is_count,
}
# Settings of a model's generation config that do not matter where decoding is greedy.
HARMLESS_DEFAULTS = {
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "do_sample",
    "temperature",
    "top_p",
    "top_k",
    "use_cache",
    "transformers_version",
    "_from_model_config",
    "max_length",
}
# Caches of a model's own ``generate`` in place of which ours give the same: they round nothing.
EXACT_CACHES = {
    "dynamic",
    "offloaded",
    "static",
    "sliding_window",
    "hybrid",  # in the repositories of Gemma-2
    "hybrid_chunked",
}
# Settings of a generation config that are followed, and the values with which they are.
FOLLOWED_DEFAULTS: dict[str, Callable[[Any], bool]] = {
    "cache_implementation": lambda value: value in EXACT_CACHES,
    "max_new_tokens": lambda value: _is_count(value) and value > 0,
}
# Parts of ``generate`` that prepare what the model's forward pass is given, and choose nothing; so
# do those that make caches.
PREPARATIONS = {"prepare_inputs_for_generation", "create_masks_for_generate"}
# Rotary embeddings in which a token's position is all that matters, and not the text's length.
STATIC_ROPES = {"default", "linear", "llama3", "yarn", "proportional"}


def unfollowed_argument(signature: inspect.Signature, arguments: Mapping[str, Any]) -> str | None:
    """The first argument of HFLM's constructor that is not its default and is not followed."""
    for name, value in arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind is inspect.Parameter.VAR_KEYWORD or name in FOLLOWED_ARGUMENTS:
            continue
        if value is not parameter.default and value != parameter.default:
            return f"{name}={value!r} was given"
    return None


def unsuitable_build(model: Any) -> str | None:
    """What is unusual about a model, as far as can be seen without running it."""
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        return f"{name} is no model of transformers"
    for module in model.modules():
        if getattr(module, "_compiled_call_impl", None) is not None:
            return f"{name} is compiled"
        rope_types = getattr(module, "rope_type", {})  # by kind of layer, or one for all
        if isinstance(rope_types, str):
            rope_types = {"all": rope_types}
        for rope_type in rope_types.values():
            if rope_type not in STATIC_ROPES:
                return f"rotary embeddings of type {rope_type!r} depend on a text's length"
    decoder = model.get_decoder()
    layers = getattr(decoder, "layers", None) or ()
    attentions = [getattr(layer, "self_attn", None) for layer in layers]  # None in a hybrid model
    if not attentions or None in attentions:
        return f"{type(decoder).__name__} has no layers with self_attn"
    implementation = decoder.config._attn_implementation
    if implementation not in IMPLEMENTATIONS:
        return f"the attention implementation {implementation!r} takes no masks of ours"
    return None


def unfollowed_setting(settings: Mapping[str, Any], vocabulary_size: int) -> str | None:
    """What in a request's settings, normalized by lm-eval, is more than greedy decoding."""
    for name, value in settings.items():
        if name == "eos_token_id":
            tokens = value if isinstance(value, list) and value else [value]
            is_followed = all(_is_count(token) and token < vocabulary_size for token in tokens)
        else:
            is_followed = name in FOLLOWED_SETTINGS and FOLLOWED_SETTINGS[name](value)
        if not is_followed:
            return f"a request has {name}={value!r}"
    return None


def active_default(model: PreTrainedModel) -> str | None:
    """What, besides a request's settings, has a say in the tokens that a model writes."""
    name = type(model).__name__
    for part, stock in vars(GenerationMixin).items():
        is_preparation = part in PREPARATIONS or "cache" in part
        is_stock = not inspect.isfunction(stock) or getattr(type(model), part) is stock
        if not is_preparation and not is_stock:
            return f"{name} has {part} of its own"
    if model.generation_config is None:
        return f"{name} has no generation config"
    neutral = GenerationConfig._get_default_generation_params()  # what generate takes None for
    for setting, value in model.generation_config.to_diff_dict().items():
        is_off = value is None or value is False or value == neutral.get(setting)
        is_followed = setting in FOLLOWED_DEFAULTS and FOLLOWED_DEFAULTS[setting](value)
        if setting not in HARMLESS_DEFAULTS and not is_off and not is_followed:
            return f"the model's generation config has {setting}={value!r}"
    return None
