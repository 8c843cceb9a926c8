"""The parts of a decoder, and whether a plan can be carried out on it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from .layers import (
    ATTENTION_PARTS,
    FFN_PARTS,
    group_width,
    indices_of_groups,
    masked,
    num_groups,
    pruned_attention,
    pruned_ffn,
)
from .plan import LayerPlan, PruningPlan

# Norms of the decoder layers in which the path through attention is known. Any other layer may have
# a norm after attention, which would undo alpha, or a second mixer beside attention.
KNOWN_NORMS = (
    {"input_layernorm", "post_attention_layernorm"},  # Llama and most others
    {"input_layernorm"},  # Cohere: attention and FFN in parallel
    {  # Gemma-2
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    },
    {  # GLM-4
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    },
    {"post_attention_layernorm", "post_feedforward_layernorm"},  # OLMo-2
    {"attention_layernorm", "feedforward_layernorm"},  # Apertus
    {"input_layernorm", "pre_feedforward_layernorm"},
)
OTHER_PARTS = ("self_attn", "mlp", "block_sparse_moe", "dropout")
# Relative error: more than bfloat16 costs, less than the difference to another kind of attention.
TOLERANCE = 0.05
# Positional and keyword arguments with which each module was called.
Calls = dict[nn.Module, tuple[tuple, dict[str, Any]]]


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of ``model``, from the bottom; a ValueError if it has no such list."""
    check_unwrapped(model)
    decoder = model.get_decoder()
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ValueError(
            f"{type(model).__name__} is not supported: its decoder has no list of layers "
            f"(it has {_names_of_parts(decoder)})"
        )
    return layers


def check_unwrapped(model: nn.Module) -> None:
    """Raise a ValueError if ``model`` is no model of transformers, as DataParallel makes it."""
    if not hasattr(model, "get_decoder"):
        raise ValueError(
            f"{type(model).__name__} is not a model of transformers: if it wraps one, give the "
            "wrapped model (model.module after DataParallel)"
        )


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Context in evaluation mode and without compiled code, which would not notice hooks.

    Afterwards each module is in its own mode again.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for module in training:
            module.training = True


def check_own_modules(model: PreTrainedModel) -> None:
    """Raise a ValueError if a module with weights is at two places of the decoder layers.

    A hook on it could not tell the places apart.
    """
    first_names: dict[nn.Module, str] = {}
    layers = decoder_layers(model)
    for name, module in layers.named_modules(remove_duplicate=False):
        first_name = first_names.setdefault(module, name)
        if first_name != name and next(module.parameters(), None) is not None:
            raise ValueError(
                f"layers.{first_name} and layers.{name} of this {type(model).__name__} are one "
                "module, so that what passes through them cannot be told apart: give one of the "
                "two places a copy (copy.deepcopy)"
            )


def output_norm_name(layer: nn.Module) -> str | None:
    """Name of the norm between attention and residual stream (Gemma-2, OLMo-2, GLM-4), or None."""
    if hasattr(layer, "post_self_attn_layernorm"):
        return "post_self_attn_layernorm"
    # In Llama `post_attention_layernorm` precedes the FFN. Only where there is also a norm after
    # the FFN does it follow attention.
    if hasattr(layer, "post_feedforward_layernorm"):
        return "post_attention_layernorm"
    return None


def output_norm(layer: nn.Module) -> nn.Module | None:
    """The norm between attention and residual stream, or None."""
    name = output_norm_name(layer)
    return None if name is None else getattr(layer, name)


def scaled_by_alpha(layer: nn.Module) -> nn.Module:
    """The module into whose weights alpha is multiplied: W_O, or the norm after it."""
    return output_norm(layer) or layer.self_attn.o_proj


def branch_exit(layer: nn.Module) -> nn.Module:
    """The module whose output is added to the residual stream as the attention branch."""
    return output_norm(layer) or layer.self_attn


def hidden_states_of(args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
    """Hidden states (B, N, d) that a module is called with, by position or by name."""
    return args[0] if args else kwargs["hidden_states"]


def first_of(output: torch.Tensor | tuple) -> torch.Tensor:
    """Hidden states (B, N, d) that a module returns, alone or before other things."""
    if isinstance(output, tuple):
        return output[0]
    return output


def has_known_parts(layer: nn.Module) -> bool:
    """Whether ``self_attn`` is the only part that mixes tokens, with no unknown norm after it."""
    parts = {name for name, part in layer._modules.items() if part is not None}
    return parts.difference(OTHER_PARTS) in KNOWN_NORMS


def _names_of_parts(module: nn.Module, known: Iterable[str] = ()) -> str:
    """The names of the modules and weights that ``module`` has beside ``known`` ones, joined."""
    names = [name for name, _ in module.named_children()]
    names += [name for name, _ in module.named_parameters(recurse=False)]
    return ", ".join(name for name in names if name not in known)


def _in_place_of(projections: Iterable[str], layer: nn.Module) -> str:
    """What ``layer`` has in place of an attention with these linear maps, in words."""
    attention = getattr(layer, "self_attn", None)
    if attention is None:
        return f"the layer has {_names_of_parts(layer)}"
    for name in projections:
        projection = getattr(attention, name, None)
        if projection is not None and not isinstance(projection, nn.Linear):
            return f"its {name} is a {type(projection).__name__}"
    return f"it has {_names_of_parts(attention)}"


def all_linear(module: nn.Module | None, parts: Iterable[str]) -> bool:
    """Whether ``module`` has all of these linear maps."""
    return all(isinstance(getattr(module, part, None), nn.Linear) for part in parts)


def check_plan(model: PreTrainedModel, plan: PruningPlan, fold_output: bool = False) -> None:
    """Raise a ValueError, with the reason, if ``plan`` cannot be carried out on ``model``.

    The model is left as it is.
    """
    layers = decoder_layers(model)
    if getattr(model.config, "pruning_plan", None) is not None:
        raise ValueError("this model is pruned already; load the dense model again")
    check_fits(model, plan)
    if plan.alphas:
        _check_value_only(model, plan.alphas)
    for index, layer_plan in plan.layers.items():
        for weight in _touched_weights(layers[index], layer_plan, fold_output):
            # Quantized weights may be a subclass of tensors that shows their original type, and
            # those of a parametrization are computed.
            is_plain = type(weight) is nn.Parameter
            if weight.is_meta or not is_plain or not weight.is_floating_point():
                raise ValueError(
                    f"layer {index}: weights that are offloaded or quantized, or computed by a "
                    "parametrization, can be neither scaled nor sliced; load the model in float32, "
                    "bfloat16 or float16 without offloading, and remove parametrizations"
                )
    _try_out(model, plan)


def _check_value_only(model: PreTrainedModel, layers: Iterable[int]) -> None:
    """Raise a ValueError if config or parts show that attention alone is not ``H W_V W_O``."""
    name = type(model).__name__
    if model.config.get_text_config() is not model.config:
        raise ValueError(
            f"{name} is not supported: it has other inputs than text. Prune its text model alone:\n"
            "    text = AutoModelForCausalLM.from_config(model.config.get_text_config()).eval()\n"
            "    text.model = model.get_decoder()\n"
            "    text.set_output_embeddings(model.get_output_embeddings())"
        )
    if getattr(model.config, "clip_qkv", None) is not None:
        raise ValueError(
            f"{name} is not supported: it clips values (clip_qkv), so that W_V W_O is not all of it"
        )
    for index in layers:
        layer = decoder_layers(model)[index]
        if not has_known_parts(layer):
            known = {*OTHER_PARTS, *set().union(*KNOWN_NORMS)}
            # Parts may be known one by one, and not all of them together.
            parts = _names_of_parts(layer, known) or _names_of_parts(layer, OTHER_PARTS)
            raise ValueError(
                f"{name} is not supported: layer {index} has parts of no known kind ({parts})"
            )


def _touched_weights(
    layer: nn.Module, layer_plan: LayerPlan, fold_output: bool
) -> list[nn.Parameter]:
    """The weights of ``layer`` that surgery scales, folds or slices."""
    touched = []
    if layer_plan.alpha is not None:
        touched.append(scaled_by_alpha(layer).weight)
        if fold_output:
            touched.append(layer.self_attn.o_proj.weight)
    if layer_plan.removed_groups:
        touched += [getattr(layer.self_attn, part).weight for part in ATTENTION_PARTS]
    if layer_plan.removed_channels:
        touched += [getattr(layer.mlp, part).weight for part in FFN_PARTS]
    return touched


def check_fits(model: PreTrainedModel, plan: PruningPlan) -> None:
    """Raise a ValueError if ``plan`` names layers, groups or channels that ``model`` lacks.

    The modules that lose something also have to be of a known kind: separate linear projections of
    attention, and a gated FFN.
    """
    _check_not_compiled(model)
    name = type(model).__name__
    layers = decoder_layers(model)
    if plan.num_layers != len(layers):
        raise ValueError(f"the plan is for {plan.num_layers} layers, {name} has {len(layers)}")
    for index, layer_plan in plan.layers.items():
        attention = getattr(layers[index], "self_attn", None)
        needed_parts = ()  # of attention, as linear maps of their own
        if layer_plan.removed_groups:
            needed_parts = ATTENTION_PARTS
        elif layer_plan.alpha is not None:
            needed_parts = ("v_proj", "o_proj")
        if not all_linear(attention, needed_parts):
            raise ValueError(
                f"{name} is not supported: layer {index} has no self_attn with separate "
                f"{', '.join(needed_parts)} ({_in_place_of(needed_parts, layers[index])})"
            )
        if layer_plan.removed_groups:
            groups = layer_plan.removed_groups
            _check_indices(f"layer {index}: key/value group", groups, num_groups(attention))
            num_columns = len(groups) * group_width(attention)
            _check_means(index, "group_means", layer_plan.group_means, num_columns)
        if layer_plan.removed_channels:
            ffn = getattr(layers[index], "mlp", None)
            if not all_linear(ffn, FFN_PARTS):
                raise ValueError(
                    f"{name} is not supported: layer {index} has no gated FFN of "
                    f"{', '.join(FFN_PARTS)}"
                )
            channels = layer_plan.removed_channels
            num_channels = ffn.down_proj.in_features
            _check_indices(f"layer {index}: FFN channel", channels, num_channels)
            if len(channels) == num_channels:
                raise ValueError(
                    f"layer {index}: all {num_channels} FFN channels would go; leave at least one"
                )
            _check_means(index, "channel_means", layer_plan.channel_means, len(channels))


def _check_not_compiled(model: PreTrainedModel) -> None:
    """Raise a ValueError if ``torch.compile`` has put a module into another one."""
    for name, module in model.named_modules():
        if "_orig_mod" in module._modules:
            raise ValueError(
                f"{name or 'the model'} is compiled (torch.compile put it into an "
                f"{type(module).__name__}): prune the _orig_mod of that, and compile afterwards"
            )


def _check_indices(what: str, indices: Sequence[int], count: int) -> None:
    largest = indices[-1]  # they are in rising order
    if largest >= count:
        raise ValueError(f"{what} {largest} does not exist; there are {count} (0 … {count - 1})")


def _check_means(layer: int, name: str, means: Sequence[float] | None, num_columns: int) -> None:
    if means is not None and len(means) != num_columns:
        raise ValueError(f"layer {layer}: {len(means)} {name} for {num_columns} removed columns")


@torch.no_grad()
def _try_out(model: PreTrainedModel, plan: PruningPlan) -> None:
    """Raise a ValueError if a pruned module does not compute the same as a masked stock module.

    Three tokens are run through the model, because names do not show a gate, a sink or an odd norm.
    """
    layers = decoder_layers(model)
    with evaluation_mode(model):
        calls = _calls_with_three_tokens(model, plan)
        for index, layer_plan in plan.layers.items():
            reason = _difference(layers[index], index, layer_plan, calls)
            if reason is not None:
                raise ValueError(
                    f"{type(model).__name__} is not supported: in layer {index}, {reason}"
                )


def few_tokens(model: PreTrainedModel) -> torch.Tensor:
    """Three token ids (1, 3) on the model's device.

    They are from the middle of the vocabulary: token 0 is often padding, with a zero embedding.
    """
    ids = model.get_input_embeddings().num_embeddings // 2 - torch.arange(3)
    return ids[None].to(model.device)


def _calls_with_three_tokens(model: PreTrainedModel, plan: PruningPlan) -> Calls:
    """Run ``model`` on three tokens; the arguments of the modules in the layers of ``plan``."""
    calls: Calls = {}

    def record(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        calls[module] = (args, kwargs)

    with ExitStack() as hooks:
        for index in plan.layers:
            for module in decoder_layers(model)[index].children():
                hook = module.register_forward_pre_hook(record, with_kwargs=True)
                hooks.enter_context(hook)
        model(few_tokens(model), use_cache=False)
    return calls


def _difference(layer: nn.Module, index: int, layer_plan: LayerPlan, calls: Calls) -> str | None:
    """How the pruned modules of a layer differ from the stock ones, in words, or None."""
    if layer_plan.removed_channels:
        ffn = layer.mlp
        pruned = pruned_ffn(ffn, layer_plan)
        twin = masked(ffn, "down_proj", layer_plan.removed_channels, layer_plan.channel_means)
        if not _agree(pruned, twin, calls[ffn]):
            return (
                "an FFN without some of its channels is not the same as with these channels masked"
            )
    # A layer that keeps its attention may have none, or one of any kind.
    attention = getattr(layer, "self_attn", None)
    if layer_plan.removed_groups:
        pruned = pruned_attention(attention, index, layer_plan)
        columns = indices_of_groups(layer_plan.removed_groups, group_width(attention))
        twin = masked(attention, "o_proj", columns, layer_plan.group_means)
        if not _agree(pruned, twin, calls[attention]):
            return (
                "attention without some of its heads is not the same as with these heads masked"
                f"{_beside_projections(attention)}"
            )
    if layer_plan.alpha is not None:
        pruned = pruned_attention(attention, index, LayerPlan(alpha=1.0))
        # The first token attends to itself alone, also in stock attention.
        if not _agree(pruned, attention, calls[attention], num_tokens=1):
            return (
                "attention on a single token is not W_V W_O, but has a gate, a sink or a norm"
                f"{_beside_projections(attention)}"
            )
    return None


def _beside_projections(attention: nn.Module) -> str:
    """What the attention has beside its four projections, in parentheses, if anything."""
    parts = _names_of_parts(attention, ATTENTION_PARTS)
    return f" ({parts})" if parts else ""


def _agree(
    pruned: nn.Module,
    stock: nn.Module,
    call: tuple[tuple, dict[str, Any]],
    num_tokens: int | None = None,
) -> bool:
    """Whether both modules give the same output for the first ``num_tokens`` (default: all)."""
    args, kwargs = call
    expected = stock.forward(*args, **kwargs)
    try:
        output = pruned.forward(*args, **kwargs)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, AttributeError, ValueError):
        return False  # the slices do not fit together
    expected = first_of(expected)[:, :num_tokens].float()
    output = first_of(output)[:, :num_tokens].float()
    if not expected.isfinite().all():
        return True  # such weights do not tell anything about the architecture
    error = (output - expected).norm()
    return bool(error <= TOLERANCE * expected.norm().clamp_min(1e-12))
