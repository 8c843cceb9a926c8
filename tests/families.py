"""Every causal family of transformers, tiny and random, against what the library promises.

``python tests/families.py`` writes the table of ``docs/library.md``; with names of families, it
prints their rows alone. An outcome is *yes*, *no* with the reason of a refusal, *as hf* (lm-eval's
own code runs), *hf fails* (lm-eval's own code does), or *–* where no model could be pruned.
"""

import copy
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from helpers import CHECKOUT, VISION, with_twins
from lm_twins import requests_of, with_tokenizer
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from harp_lib import (
    PruningPlan,
    apply_plan,
    load_pruned,
    make_plan,
    perplexity,
    save_gguf,
    save_nemotron_nas,
    save_pruned,
    search_alphas,
)
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.pruning.architecture import decoder_layers

PAGE = CHECKOUT / "docs" / "library.md"
MARKS = ("<!-- families: python tests/families.py -->", "<!-- end of families -->")
COLUMNS = ("HARP", "baselines", "hf-prefix", "GGUF", "nemotron-nas")
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


SHORTER = (
    (r"^\w+ is not supported: ", ""),
    (r"^(in )?layer \d+,? ", ""),
    (r"^has no self_attn with separate [^()]*\((.*)\)$", r"\1"),
    (r"^\w+ models cannot be written as .*$", "another architecture"),
)


class Wrong(AssertionError):
    """The library gave another result than the model."""


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


def outcomes(family: str) -> dict[str, str]:
    """What each column of the table says of a family, and *perplexity* beside them."""
    model = build(family)
    row = {"perplexity": outcome(check_perplexity, model)}
    row["hf-prefix"] = outcome(check_prefix, model)
    # Models from a folder differ from fresh ones in the names of their weights.
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        model = type(model).from_pretrained(folder).eval()
    row["HARP"] = outcome(check_harp, copy.deepcopy(model))
    row["baselines"] = outcome(check_baseline, copy.deepcopy(model))
    if row["HARP"] != "yes":  # there is no pruned model to be written
        return row | dict.fromkeys(("GGUF", "nemotron-nas"), "–")
    row["GGUF"] = outcome(check_export, copy.deepcopy(model), save_gguf)
    row["nemotron-nas"] = outcome(check_export, copy.deepcopy(model), save_nemotron_nas)
    return row


def outcome(check: Callable, *args) -> str:
    """What ``check`` returns, or the reason of a refusal, or what went wrong."""
    try:
        return check(*args)
    except ValueError as error:
        return reason(error)
    except Wrong as error:
        return f"WRONG: {error}"
    except Exception as error:
        return f"CRASH: {type(error).__name__}: {error}".replace("\n", " ")[:200]


def reason(error: ValueError) -> str:
    """The message of a refusal in a few words: what is in the way, and not what can be done."""
    text = str(error).replace("\n", " ").split(";")[0].split(". ")[0].strip()
    for pattern, short in SHORTER:
        text = re.sub(pattern, short, text)
    return f"no: {text}"


def same(output: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Raise :class:`Wrong` if logits differ by more than rounding."""
    error = (output - expected).abs().max().item()
    if not error <= 1e-4 * max(1.0, expected.abs().max().item()):
        raise Wrong(f"{what}: logits differ by {error:.2g}")


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    return model(IDS).logits


def check_perplexity(model: PreTrainedModel) -> str:
    """``perplexity`` is that of the model's own logits."""
    log_probs = logits(model)[:, :-1].log_softmax(-1)
    expected = -log_probs.gather(-1, IDS[:, 1:, None]).mean()
    result = perplexity(model, IDS)
    if abs(result - expected.exp()) > 1e-3 * expected.exp():
        raise Wrong(f"perplexity {result:.5g} for {expected.exp():.5g}")
    return "yes"


def check_prefix(model: PreTrainedModel) -> str:
    """Likelihoods and a text of ``hf-prefix`` are those of ``hf``."""
    stock, ours = with_tokenizer(model)
    few_shots = "def f(x): return the value of the object in a statement that follows it. " * 2
    pairs = [(few_shots + "one", " a"), (few_shots + "one", " name"), (few_shots + "two", " a")]
    scored = requests_of("loglikelihood", *pairs)
    settings = {"until": ["\n"], "max_gen_toks": 6, "do_sample": False}
    written = requests_of("generate_until", (few_shots, settings))
    try:
        expected = stock.loglikelihood(scored, disable_tqdm=True)
        text = stock.generate_until(written, disable_tqdm=True)
    except Exception:
        return "hf fails"
    for (result, _), (value, _) in zip(
        ours.loglikelihood(scored, disable_tqdm=True), expected, strict=True
    ):
        if abs(result - value) > 1e-3:
            raise Wrong(f"likelihood {result:.5g} for {value:.5g}")
    if ours.generate_until(written, disable_tqdm=True) != text:
        raise Wrong("another text")
    return "yes" if ours._can_share() else "as hf"


def check_harp(model: PreTrainedModel) -> str:
    """Search, pruning, generation and loading of a model whose top layers are value-only."""
    num_layers = len(decoder_layers(model))
    alphas = {num_layers - 1: 0.5, num_layers - 2: 0.25}
    plan = PruningPlan.value_only(num_layers, alphas)
    pruned = apply_plan(copy.deepcopy(model), plan)
    same(logits(pruned), logits(with_twins(copy.deepcopy(model), alphas)), "pruned against masked")
    searches = [
        search_alphas(model, IDS, 2, grid=[0.5, 1], reuse_prefix=reuse, progress=False)
        for reuse in (False, True)
    ]
    for layer, expected in searches[0].perplexities.items():
        for alpha, value in expected.items():
            result = searches[1].perplexities[layer][alpha]
            if abs(result - value) > 1e-3 * value:
                raise Wrong(f"search in layer {layer}: {result:.5g} for {value:.5g}")
    check_use(pruned)
    return "yes"


def check_baseline(model: PreTrainedModel) -> str:
    """Two key/value groups are removed by FLAP."""
    plan = make_plan("flap", model, IDS, kv_groups=2)
    masked = copy.deepcopy(model)
    for index, layer_plan in plan.layers.items():
        _mask(decoder_layers(masked)[index].self_attn, layer_plan)
    pruned = apply_plan(model, plan)
    same(logits(pruned), logits(masked), "pruned against masked")
    check_use(pruned)
    return "yes"


@torch.no_grad()
def _mask(attention: nn.Module, layer_plan) -> None:
    """Replace what heads write by its mean, or by zero."""
    output = attention.o_proj
    num_groups = attention.v_proj.out_features // attention.head_dim
    columns = torch.arange(output.in_features).view(num_groups, -1)
    columns = columns[list(layer_plan.removed_groups)].flatten()
    if layer_plan.group_means is not None:
        bias = output.weight[:, columns] @ torch.tensor(layer_plan.group_means)
        if output.bias is not None:
            bias = bias + output.bias
        output.bias = nn.Parameter(bias)
    output.weight[:, columns] = 0


def check_use(pruned: PreTrainedModel) -> None:
    """A pruned model generates with a cache as without, and is the same when it is loaded."""
    expected = logits(pruned)
    texts = []
    for use_cache in (True, False):
        pruned.tail_only_prefill = use_cache
        texts.append(
            pruned.generate(
                IDS,
                attention_mask=torch.ones_like(IDS),
                max_new_tokens=6,
                min_new_tokens=6,
                do_sample=False,
                use_cache=use_cache,
            )
        )
    if not torch.equal(*texts):
        raise Wrong("another text with a cache than without")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pruned"
        save_pruned(pruned, tiny_tokenizer(), path)
        same(logits(load_pruned(path)[0]), expected, "load_pruned")
        remote = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True)
        same(logits(remote.eval()), expected, "trust_remote_code")


def check_export(model: PreTrainedModel, save: Callable) -> str:
    """A saver writes the pruned model; it reads back what it wrote and compares the logits."""
    num_layers = len(decoder_layers(model))
    apply_plan(model, PruningPlan.value_only(num_layers, {num_layers - 1: 0.5}))
    with tempfile.TemporaryDirectory() as folder:
        save(model, tiny_tokenizer(), Path(folder) / "file.gguf")
    return "yes"


def table(rows: dict[str, dict[str, str]]) -> str:
    """The rows as Markdown."""
    lines = [f"| family | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for family, row in rows.items():
        lines.append(f"| {family} | {' | '.join(row[column] for column in COLUMNS)} |")
    return "\n".join(lines)


def write_table(rows: dict[str, dict[str, str]], not_built: dict[str, str]) -> None:
    """Put the table between its marks in ``docs/library.md``."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    missing = f"No tiny model of these could be built: {', '.join(not_built)}."
    content = f"{MARKS[0]}\n\n{table(rows)}\n\n{missing}\n\n{MARKS[1]}"
    PAGE.write_text(before + content + after, encoding="utf-8")


def main(families: list[str]) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    rows: dict[str, dict[str, str]] = {}
    not_built: dict[str, str] = {}
    for family in families or all_rows():
        try:
            build(family)
        except Exception as error:
            not_built[family] = f"{type(error).__name__}: {error}".replace("\n", " ")[:120]
            print(f"{family} | not built: {not_built[family]}", flush=True)
            continue
        rows[family] = outcomes(family)
        print(
            family,
            *(f"{key}: {value}" for key, value in rows[family].items()),
            sep=" | ",
            flush=True,
        )
    if not families:
        write_table(rows, not_built)


if __name__ == "__main__":
    main(sys.argv[1:])
