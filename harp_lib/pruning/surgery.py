"""Carries out a pruning plan on a model in memory.

A value-only layer of the paper's Section 2.3 computes ``H + alpha * H W_V W_O``. Surgery replaces
its attention by :class:`~harp_lib.pruning.layers.LoneAttention`, which is ``H W_V W_O``, and
:func:`fold_alpha` multiplies alpha into the weights.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from .architecture import (
    branch_exit,
    check_fits,
    check_plan,
    decoder_layers,
    output_norm,
    output_norm_name,
)
from .layers import LoneAttention, cache_index, linear_like, scaled, with_parts
from .plan import PruningPlan
from .remote import pruned_class
from .swap import swap_modules

Weights = Mapping[int, Mapping[str, torch.Tensor]]


@torch.inference_mode(False)
def apply_plan(
    model: PreTrainedModel,
    plan: PruningPlan,
    fold_output: bool = False,
    weights: Weights | None = None,
) -> PreTrainedModel:
    """Prune ``model`` in place and return it, with alpha multiplied into its weights.

    A pruned layer gets modules and weights of its own where something is changed, so that another
    place that shares them, in this model or in another, keeps what it has.

    The class of the model becomes ``harp_lib.pruning.remote.Harp<its class>``, a subclass that can
    save the pruned model and generate with it.

    Parameters
    ----------
    model : PreTrainedModel
        A dense transformers decoder whose attention has separate projections, and whose FFN is
        gated if the plan removes channels.
    plan : PruningPlan
        A plan for as many layers as the model has.
    fold_output : bool
        Give value-only layers of a model with grouped-query attention an output projection that
        reads each value head once, with K·Dh inputs instead of H·Dh: the same map with fewer
        weights, and without copies of the values.
    weights : dict, optional
        Refitted values and folded output projections of value-only layers with alpha = 1, by layer
        index, as :func:`harp_lib.refit_values` returns them. They imply ``fold_output``.

    Returns
    -------
    PreTrainedModel
        The same object, pruned.

    Raises
    ------
    ValueError
        If the model is pruned already, lacks layers, groups or channels of the plan, has weights
        that cannot be scaled or sliced (offloaded or quantized), or has another kind of attention
        or FFN. The model is unchanged then.
    """
    fold_output = fold_output or bool(weights)
    check_plan(model, plan, fold_output)
    refitted = _refitted_attention(model, plan, weights)
    with _original_layers(model, plan) as undo:
        undo.callback(setattr, model, "__class__", type(model))
        for module in model.modules():
            if "config" in vars(module):
                undo.callback(setattr, module, "config", module.config)
        _mark_as_pruned(model, plan, fold_output)
        swap_modules(model, plan, fold_output, refitted)
        for layer, alpha in plan.alphas.items():
            if alpha not in (0, 1):
                fold_alpha(decoder_layers(model)[layer], alpha)
        undo.pop_all()  # nothing failed
    return model


def _original_layers(model: PreTrainedModel, plan: PruningPlan) -> ExitStack:
    """Context after which the layers of ``plan`` consist of the modules that they have now."""
    undo = ExitStack()
    layers = decoder_layers(model)
    for index in plan.layers:
        undo.callback(layers.__setitem__, index, layers[index])
        for name, module in layers[index]._modules.items():
            undo.callback(setattr, layers[index], name, module)
    return undo


def _mark_as_pruned(model: PreTrainedModel, plan: PruningPlan, fold_output: bool) -> None:
    """Give ``model`` the class and the config of a pruned model."""
    config = model.config
    pruned_config = copy.deepcopy(config)  # another model may share the dense config
    pruned_config.__class__ = pruned_class(type(config))
    pruned_config.pruning_plan = plan.to_dict()
    pruned_config.fold_output = fold_output
    model.__class__ = pruned_class(type(model))
    for module in model.modules():
        if getattr(module, "config", None) is config:
            module.config = pruned_config


@torch.no_grad()
def fold_alpha(layer: nn.Module, alpha: float) -> None:
    """Multiply the attention branch of ``layer`` by ``alpha``, in W_O or the norm after it."""
    norm = output_norm(layer)
    if norm is None:
        layer.self_attn.o_proj = scaled(layer.self_attn.o_proj, alpha)
        return
    # Gemma's norms compute (1 + w) x, others w x. With w' = alpha (offset + w) - offset both give
    # alpha times as much.
    offset = (norm(torch.ones_like(norm.weight)) - norm.weight).double().mean().round()
    setattr(layer, output_norm_name(layer), scaled(norm, alpha, offset))


def _refitted_attention(
    model: PreTrainedModel, plan: PruningPlan, weights: Weights | None
) -> dict[int, nn.Module]:
    """Folded value-only attention with refitted weights, by layer index.

    Each entry of ``weights`` holds ``v_proj.weight`` (K·Dh, d), ``o_proj.weight`` (d, K·Dh), and
    optionally ``v_proj.bias`` (K·Dh,) and ``o_proj.bias`` (d,).
    """
    refitted = {}
    for layer, tensors in (weights or {}).items():
        if plan.alphas.get(layer) != 1:
            raise ValueError(
                f"layer {layer} has weights of its own; the plan has to make it value-only with "
                "alpha = 1"
            )
        layers = decoder_layers(model)
        attention = LoneAttention(
            cache_index(layers, layer), layers[layer].self_attn, fold_output=True
        )
        for name in ("v_proj", "o_proj"):
            stock = getattr(attention, name)
            weight = tensors[f"{name}.weight"]
            _check_shape(weight, stock.weight.shape, f"layer {layer}: {name}.weight")
            bias = tensors.get(f"{name}.bias", stock.bias)
            if bias is not None:
                _check_shape(bias, stock.weight.shape[:1], f"layer {layer}: {name}.bias")
                bias = bias.to(stock.weight)
            setattr(attention, name, linear_like(stock, weight.to(stock.weight), bias))
        refitted[layer] = attention
    return refitted


def _check_shape(tensor: torch.Tensor, shape: torch.Size, name: str) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} has to be of shape {tuple(shape)}; got {tuple(tensor.shape)}")


@contextmanager
def temporarily_pruned(
    model: PreTrainedModel,
    plan: PruningPlan,
    fold_output: bool = False,
    weights: Weights | None = None,
) -> Iterator[None]:
    """Context in which the model is pruned; afterwards it is as before, also after an error.

    The weights of the model are not changed: the kept part of a sliced layer is a copy, and alpha
    multiplies the output of the attention branch. The arguments are those of :func:`apply_plan`.
    Hooks on modules of a pruned layer have to be set within the context, because other modules run
    there.
    """
    check_fits(model, plan)
    fold_output = fold_output or bool(weights)
    refitted = _refitted_attention(model, plan, weights)
    layers = decoder_layers(model)
    with _original_layers(model, plan) as undo:
        # Compiled code would not notice the hooks.
        undo.enter_context(torch.compiler.set_stance("force_eager"))
        swap_modules(model, plan, fold_output, refitted)
        for index, alpha in plan.alphas.items():
            # With alpha = 0 the branch is already zero, also after an RMS norm.
            if alpha not in (0, 1):
                norm = output_norm_name(layers[index])
                if norm is not None:  # another layer may have the same one
                    setattr(layers[index], norm, with_parts(getattr(layers[index], norm)))
                scale_by_alpha = partial(_scale_output, alpha)
                branch_exit(layers[index]).register_forward_hook(scale_by_alpha)
        yield


def temporarily_value_only(
    model: PreTrainedModel, alphas: Mapping[int, float]
) -> AbstractContextManager[None]:
    """:func:`temporarily_pruned` with value-only layers, given as alpha by layer index."""
    return temporarily_pruned(model, PruningPlan.value_only(len(decoder_layers(model)), alphas))


def _scale_output(
    alpha: float, module: nn.Module, inputs: tuple, output: torch.Tensor | tuple
) -> torch.Tensor | tuple:
    """Forward hook that multiplies the output of a module by ``alpha``."""
    if isinstance(output, tuple):
        return (alpha * output[0], *output[1:])
    return alpha * output
