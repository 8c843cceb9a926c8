"""Carries plans out: the only file that changes a model."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from .architecture import branch_exit, check_fits, check_plan, decoder_layers, output_norm
from .layers import LoneAttention, linear_like, pruned_attention, pruned_ffn
from .plan import PruningPlan

Weights = Mapping[int, Mapping[str, torch.Tensor]]


def apply_plan(
    model: PreTrainedModel,
    plan: PruningPlan,
    fold_output: bool = False,
    weights: Weights | None = None,
) -> PreTrainedModel:
    """Prune ``model`` in place and return it: what the plan removes is gone afterwards, alpha is in
    the weights.

    Its class becomes ``harp_lib.pruning.remote.Harp<its class>``, a subclass that knows how to save
    and to generate.

    Parameters
    ----------
    model : PreTrainedModel
        A dense transformers decoder whose attention has separate projections, and a gated FFN where
        channels go.
    plan : PruningPlan
        For as many layers as the model has.
    fold_output : bool
        Value-only layers of a model with grouped-query attention get an output projection that
        reads each value head once, K·Dh inputs instead of H·Dh: the same map with fewer weights,
        and no copies of values before it.
    weights : dict, optional
        Of value-only layers with alpha = 1, other values and folded output projections, as
        :func:`harp_lib.refit_values` finds them; ``fold_output`` is on then.

    Raises
    ------
    ValueError
        If the model was pruned before, lacks layers, groups or channels of the plan, has weights
        that cannot be scaled or sliced (offloaded or quantized), or attention or an FFN of another
        kind. It is unchanged then.
    """
    from .remote import pruned_class

    fold_output = fold_output or bool(weights)
    check_plan(model, plan, fold_output)
    ready = _refitted(model, plan, weights)
    config, pruned_config = (
        model.config,
        copy.deepcopy(model.config),
    )  # which another model may share
    pruned_config.__class__ = pruned_class(type(config))
    pruned_config.pruning_plan, pruned_config.fold_output = plan.to_dict(), fold_output
    # The model is marked first: if memory runs out below, it is half pruned, and refused instead of
    # pruned twice.
    model.__class__ = pruned_class(type(model))
    for module in model.modules():
        if getattr(module, "config", None) is config:
            module.config = pruned_config
    for layer, alpha in plan.alphas.items():
        if alpha != 1:
            fold_alpha(decoder_layers(model)[layer], alpha)
    swap_modules(model, plan, fold_output, ready)
    return model


def _refitted(
    model: PreTrainedModel, plan: PruningPlan, weights: Weights | None
) -> dict[int, nn.Module]:
    """Folded value-only attention by layer: ``v_proj.weight`` (K·Dh, d), ``o_proj.weight`` (d,
    K·Dh), and biases.
    """
    ready = {}
    for layer, its in (weights or {}).items():
        if plan.alphas.get(layer) != 1:
            raise ValueError(
                f"layer {layer} has weights of its own; the plan has to make it value-only with alpha = 1"
            )
        ready[layer] = LoneAttention(
            layer, decoder_layers(model)[layer].self_attn, fold_output=True
        )
        for name in ("v_proj", "o_proj"):
            stock, weight = getattr(ready[layer], name), its[f"{name}.weight"]
            if weight.shape != stock.weight.shape:
                wanted, given = tuple(stock.weight.shape), tuple(weight.shape)
                raise ValueError(
                    f"layer {layer}: {name}.weight has to be of shape {wanted}; got {given}"
                )
            fitted = linear_like(
                stock, weight.to(stock.weight), its.get(f"{name}.bias", stock.bias)
            )
            setattr(ready[layer], name, fitted)
    return ready


def swap_modules(
    model: PreTrainedModel,
    plan: PruningPlan,
    fold_output: bool = False,
    ready: Mapping[int, nn.Module] | None = None,
) -> None:
    """Replace the modules that lose something, by those that are ``ready``. Alpha is left out, no
    weight changed.
    """
    for index, lost in plan.layers.items():
        layer, made = decoder_layers(model)[index], (ready or {}).get(index)
        layer.self_attn = made or pruned_attention(layer.self_attn, index, lost, fold_output)
        if lost.removed_channels:  # a value-only layer may have an FFN of any kind
            layer.mlp = pruned_ffn(layer.mlp, lost)


@contextmanager
def temporarily_pruned(
    model: PreTrainedModel,
    plan: PruningPlan,
    fold_output: bool = False,
    weights: Weights | None = None,
) -> Iterator[None]:
    """Within the context, the model is pruned; no weight is touched, and what is kept of sliced
    layers is copied.

    Afterwards it is as before, also after an error. Arguments as in :func:`apply_plan`; alpha
    multiplies what leaves attention. Hooks on modules of a pruned layer have to be set within the
    context: other modules run there.
    """
    check_fits(model, plan)
    fold_output, ready = fold_output or bool(weights), _refitted(model, plan, weights)
    layers = decoder_layers(model)
    with ExitStack() as undo:
        for index in plan.layers:
            for name, module in layers[index].named_children():
                undo.callback(setattr, layers[index], name, module)
        swap_modules(model, plan, fold_output, ready)
        for index, alpha in plan.alphas.items():
            # Where alpha is 0 the branch is zeros, also behind an RMS norm; needless products would
            # only cost time.
            if alpha not in (0, 1):
                undo.enter_context(
                    branch_exit(layers[index]).register_forward_hook(partial(_scale, alpha))
                )
        yield


def temporarily_value_only(
    model: PreTrainedModel, alphas: Mapping[int, float]
) -> AbstractContextManager[None]:
    """:func:`temporarily_pruned` with layers made value-only: alpha by layer index."""
    return temporarily_pruned(model, PruningPlan.value_only(len(decoder_layers(model)), alphas))


def _scale(
    alpha: float, module: nn.Module, inputs: tuple, output: torch.Tensor | tuple
) -> torch.Tensor | tuple:
    return (alpha * output[0], *output[1:]) if isinstance(output, tuple) else alpha * output


@torch.no_grad()
def fold_alpha(layer: nn.Module, alpha: float) -> None:
    """Multiply the attention branch of ``layer`` by ``alpha``, in the weights: W_O, or the gain of
    a norm after it.
    """
    norm, offset = output_norm(layer), 0
    if norm:  # Gemma's compute (1 + w) x, which makes w' = alpha (1 + w) - 1; others w x
        offset = (norm(torch.ones_like(norm.weight)) - norm.weight).double().mean().round()
    for weight in (norm or layer.self_attn.o_proj).parameters():
        weight.copy_(alpha * (weight.double() + offset) - offset)
