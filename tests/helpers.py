"""What several test files share, fixtures apart, which are in conftest.py."""

import contextlib
import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, LlamaModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from harp_lib.pruning.architecture import decoder_layers, output_norm
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.surgery import apply_plan

CHECKOUT = Path(__file__).resolve().parents[1]
SHARED = CHECKOUT.parent / "shared"
FAMILIES = ("tiny-llama", "tiny-qwen2", "tiny-gemma2")  # tiny-mistral computes as tiny-llama does

ODD_NAME = "a {b} $c 'd' \"e\" `f` #1 %41 [g]* é\th"
"""The name of a folder, which shells, templates and patterns would read as something else."""
NEW = 12
ROUNDING = {"atol": 1e-4, "rtol": 1e-4}
"""How far logits of a model in float32 may differ that were summed in another order.

Processors differ in this order. A wrong token or layer makes a difference of 1e-2 or more.
"""
VISION = {  # the smallest vision tower of a multimodal model
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def load_script(name):
    """A script of this checkout as a module, without running it."""
    spec = spec_from_file_location(Path(name).stem, CHECKOUT / name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def change_json(file, **values):
    """Change entries of a JSON file in place."""
    contents = json.loads(file.read_bytes()) | values
    file.write_text(json.dumps(contents), encoding="utf-8")


OTHER_FAMILIES = {
    "qwen3": {},
    "gemma": {},
    "gemma3_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 16,
    },
    "olmo2": {},  # norms after attention whose gain is w, not 1 + w
    "mixtral": {"num_local_experts": 2},
    "granitemoe": {"num_local_experts": 2},  # its FFN is not called mlp
    "cohere": {},  # attention and FFN in parallel
    "granite": {"residual_multiplier": 0.5, "logits_scaling": 4.0},
    "starcoder2": {"use_bias": True},
}


def small_model(model_type, **particulars):
    shape = {
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "initializer_range": 0.2,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, **shape | particulars)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def model_of(tiny, family):
    """A tiny model of the registry, or a small one of ``OTHER_FAMILIES``, of 512 tokens."""
    if family in OTHER_FAMILIES:
        return small_model(family, vocab_size=512, **OTHER_FAMILIES[family])
    return tiny(family)


PLANS = {
    "dense": {},
    "top value-only and skipped": {5: LayerPlan(0.8), 4: LayerPlan(0.0)},
    "first value-only": {0: LayerPlan(0.5), 3: LayerPlan(0.5)},
    "all value-only": {layer: LayerPlan(0.5) for layer in range(6)},
    "thinned": {
        0: LayerPlan(removed_groups=(0,)),
        2: LayerPlan(removed_groups=(0, 1)),
        5: LayerPlan(0.3),
    },
}
"""What keeps a cache of other entries than the dense model's, in six layers, and that model."""


def pruned(tiny, family, plan):
    """A tiny model of the registry, pruned as ``PLANS`` says."""
    model = tiny(family)
    if PLANS[plan]:
        apply_plan(model, PruningPlan(6, PLANS[plan]))
    return model


SHAPES = {
    "own heads": ("llama", {"num_key_value_heads": 4}),
    "one group": ("llama", {"num_key_value_heads": 1}),
    # Its attention reshapes by a stored number of heads.
    "counted heads": ("stablelm", {"use_qkv_bias": True}),
    "narrow heads": ("llama", {"head_dim": 4}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    **{family: (family, particulars) for family, particulars in OTHER_FAMILIES.items()},
}


def make(tiny, name):
    """A tiny model of the registry, or a small one of ``SHAPES`` or of a model type.

    It is in float64, so that twins whose sums run in another order agree on every processor.
    """
    if name.startswith("tiny-"):
        return in_float64(tiny(name))
    model_type, particulars = SHAPES.get(name, (name, {}))
    return in_float64(small_model(model_type, **particulars))


def in_float64(model):
    """The same model in float64, with experts by a kernel that takes it."""
    model.config._experts_implementation = "eager"
    return model.double()


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


@contextlib.contextmanager
def unchanged(model):
    """Context behind which weights, gradients, modules, their modes and hooks are as before."""
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    others = _all_but_weights(model)
    yield
    assert _all_but_weights(model) == others
    after = model.state_dict()
    assert list(after) == list(weights)
    for name, weight in weights.items():
        assert torch.equal(after[name], weight), name


def _all_but_weights(model):
    modules = []
    for name, module in model.named_modules():
        hooks = [*module._forward_hooks, *module._forward_pre_hooks]
        modules.append((name, type(module), module.training, hooks, vars(module).get("forward")))
    gradients = []
    for name, weight in model.named_parameters():
        place = None if weight.grad is None else weight.grad.data_ptr()
        gradients.append((name, weight.requires_grad, place))
    return modules, gradients, model.config._attn_implementation


def with_twins(model, alphas):
    """``model`` with hand-made value-only layers, given as alpha by layer index."""
    for layer, alpha in alphas.items():
        module = decoder_layers(model)[layer]
        module.self_attn = IdentityAttention(module.self_attn)
        multiply_branch(module, alpha)
    return model


def generate(model, ids, mask=None, cache=None, assistant=None, **options):
    """``NEW`` tokens after ``ids``, with their logits."""
    if mask is None:
        mask = torch.ones_like(ids)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if cache is not None:
        inputs["past_key_values"] = cache
    settings = GenerationConfig(
        return_dict_in_generate=True,
        output_logits=True,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=2,
        **options,
    )
    return model.generate(**inputs, generation_config=settings, assistant_model=assistant)


def assert_same(first, second):
    """Two results of ``generate`` have the same tokens, and the same logits but for rounding."""
    assert torch.equal(first.sequences, second.sequences)
    for a, b in zip(first.logits, second.logits, strict=True):
        torch.testing.assert_close(a, b, **ROUNDING)


class IdentityAttention(torch.nn.Module):
    """The obvious twin of a value-only layer: stock attention on each token as its own text."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(
        self,
        hidden_states,
        position_embeddings=None,
        attention_mask=None,
        past_key_values=None,
        **kwargs,
    ):
        batch, length, width = hidden_states.shape
        first_position = tuple(
            part[:, :1].expand(batch, -1, -1).repeat_interleave(length, 0)  # (B·N, 1, Dh)
            for part in position_embeddings
        )
        alone = hidden_states.reshape(batch * length, 1, width)
        positions = {}
        if "position_ids" in kwargs:  # Ministral 3 scales queries by them
            positions["position_ids"] = torch.zeros(batch * length, 1, dtype=torch.long)
        output, _ = self.attention(
            alone,
            position_embeddings=first_position,
            attention_mask=None,
            past_key_values=None,
            **positions,
        )
        return output.view(batch, length, width), None


def multiply_branch(layer, alpha):
    norm = output_norm(layer)
    if norm is not None:
        norm.register_forward_hook(lambda module, inputs, output: alpha * output)
    else:
        layer.self_attn.register_forward_hook(
            lambda module, inputs, output: (alpha * output[0], None)
        )


class _EmbeddingsEverywhere(LlamaModel):
    """A decoder that adds the embeddings again after each layer."""

    def forward(self, input_ids, attention_mask=None, **kwargs):
        embeddings = self.embed_tokens(input_ids)  # (B, N, d)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        rotations = self.rotary_emb(embeddings, positions)
        hidden = embeddings
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=rotations) + embeddings
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden))


def with_embeddings_everywhere(model):
    """A tiny Llama whose layers cannot be run on hidden states alone."""
    model.model.__class__ = _EmbeddingsEverywhere
    return model
