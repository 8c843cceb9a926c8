"""Carries plans out: the only file that changes a model."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel

from .architecture import branch_exit, check_fits, check_plan, decoder_layers, exit_weights, gain_offset, output_norm
from .layers import pruned_attention, pruned_ffn
from .plan import PruningPlan


def apply_plan(model: PreTrainedModel, plan: PruningPlan, fold_output: bool = False) -> PreTrainedModel:
    """Prune ``model`` in place, structurally: what the plan removes is gone afterwards, alpha is in the weights.

    The model becomes an instance of ``harp_lib.pruning.remote.Harp<its class>``, a subclass of its class, so that
    ``save_pretrained`` and ``generate`` do the right thing.

    Parameters
    ----------
    model : PreTrainedModel
        A dense transformers decoder whose attention has separate projections, and a gated FFN where channels go.
    plan : PruningPlan
        For as many layers as the model has.
    fold_output : bool
        Value-only layers of a model with grouped-query attention get an output projection that reads each value head
        once, K·Dh inputs instead of H·Dh: the same map with fewer weights, and no copies of values before it. Another
        way to carry the plan out; the saved config says so.

    Returns
    -------
    PreTrainedModel
        The same object.

    Raises
    ------
    ValueError
        If the model was pruned before, has another number of layers, groups or channels than the plan names, keeps
        weights where they cannot be scaled, sliced or folded (offloaded or quantized), or its attention or FFN is not
        of the supported kind. The model is unchanged then.
    """
    from .remote import pruned_class

    check_plan(model, plan, fold_output)
    model_class, config_class = pruned_class(type(model)), pruned_class(type(model.config))
    # The model is marked first: if memory runs out below, it is half pruned, and refused instead of pruned twice.
    config = model.config
    pruned_config = copy.deepcopy(config)  # models may share a config object; only this one was pruned
    pruned_config.__class__ = config_class
    pruned_config.pruning_plan, pruned_config.fold_output = plan.to_dict(), fold_output
    for module in model.modules():
        if getattr(module, "config", None) is config:
            module.config = pruned_config
    model.__class__ = model_class
    for layer, alpha in plan.alphas.items():
        fold_alpha(decoder_layers(model)[layer], alpha)
    swap_modules(model, plan, fold_output)
    return model


def swap_modules(model: PreTrainedModel, plan: PruningPlan, fold_output: bool = False) -> None:
    """Replace the modules that lose something; alpha is left out. No weight is changed: folded ones are new."""
    for index, lost in plan.layers.items():
        layer = decoder_layers(model)[index]
        layer.self_attn = pruned_attention(layer.self_attn, index, lost, fold_output)
        if lost.removed_channels:  # a value-only layer may have an FFN of any kind
            layer.mlp = pruned_ffn(layer.mlp, lost)


@contextmanager
def temporarily_pruned(model: PreTrainedModel, plan: PruningPlan, fold_output: bool = False) -> Iterator[None]:
    """Within the context, the model is pruned; no weight is touched, and what is kept of sliced layers is copied.

    Parameters
    ----------
    model : PreTrainedModel
        A dense model. It is as before when the context ends, also after an error. Hooks on modules of a pruned layer
        have to be set within the context: other modules run there.
    plan : PruningPlan
        For as many layers as the model has. Alpha multiplies the attention branch as it leaves.
    fold_output : bool
        As in :func:`apply_plan`; the folded projections last as long as the context.
    """
    check_fits(model, plan)
    layers = decoder_layers(model)
    with ExitStack() as undo:
        for index in plan.layers:
            for name, module in layers[index].named_children():
                undo.callback(setattr, layers[index], name, module)
        swap_modules(model, plan, fold_output)
        for index, alpha in plan.alphas.items():
            # Where alpha is 0 the branch is zeros, also behind an RMS norm; needless products would only cost time.
            if alpha not in (0, 1):
                undo.enter_context(branch_exit(layers[index]).register_forward_hook(_scaled_by(alpha)))
        yield


def temporarily_value_only(model: PreTrainedModel, alphas: Mapping[int, float]) -> AbstractContextManager[None]:
    """:func:`temporarily_pruned` with layers made value-only: alpha by layer index."""
    return temporarily_pruned(model, PruningPlan.value_only(len(decoder_layers(model)), alphas))


def _scaled_by(alpha: float):
    def scale(module: nn.Module, inputs: tuple, output: torch.Tensor | tuple) -> torch.Tensor | tuple:
        return (alpha * output[0], *output[1:]) if isinstance(output, tuple) else alpha * output

    return scale


@torch.no_grad()
def fold_alpha(layer: nn.Module, alpha: float) -> None:
    """Multiply the attention branch of ``layer`` by ``alpha``, in the weights.

    Where a norm follows the attention it would undo a smaller ``W_O``, so its gain takes alpha: Gemma's norms
    compute ``(1 + w) x``, which makes ``w' = alpha (1 + w) - 1``.
    """
    norm = output_norm(layer)
    offset = gain_offset(norm) if norm else 0.0
    if alpha != 1:
        for weight in exit_weights(layer):
            weight.copy_(alpha * (weight.double() + offset) - offset)
