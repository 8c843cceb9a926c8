"""HARP: queries and keys of the highest layers go, and alpha rescales what stays (paper, Section 2.3)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from transformers import PreTrainedModel

from harp_lib.accounting import ffn_channels_for, removed_fraction, top_groups_plan
from harp_lib.measure.likelihood import Tokens
from harp_lib.methods.alpha_search import search_alphas
from harp_lib.methods.flap import without_channels
from harp_lib.methods.method import Method
from harp_lib.pruning.architecture import check_attention, check_fits, check_slices, check_weights, decoder_layers
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.slicing import num_groups

METHOD = Method(
    name="harp",
    title="HARP",
    colour="#0173b2",
    metric=r"\mathrm{ppl}(\alpha)",
    looks_at="perplexity",
    calibration="a search over forward passes",
    weight_update="alpha scales the output projection (or the norm after it)",
    allocation="all query and key heads of the top layers",
)
METHOD_WITH_FLAP = Method(
    name="harp+flap",
    title="HARP+FLAP",
    colour="#56b4e9",
    metric=r"\mathrm{ppl}(\alpha), \; z(\mathrm{Var}(\mathbf{X}_j) \lVert \mathbf{W}^\mathrm{down}_{:,j} \rVert_2^2)",
    looks_at="perplexity; fluctuation of activations in the FFN",
    calibration="a search over forward passes, and one forward pass",
    weight_update="as HARP, and a bias on the down projection",
    allocation="as HARP; FFN channels below one threshold over all layers",
)


def harp_plan(
    model: PreTrainedModel, calibration: Tokens | None, kv_groups: int, alphas: Sequence[float] | None = None
) -> PruningPlan:
    """HARP's plan: as many whole layers from the top as hold ``kv_groups`` key/value groups.

    Parameters
    ----------
    model : PreTrainedModel
        A dense model; unchanged afterwards.
    calibration : Tensor or sequence
        The text to search alpha on, as in :func:`harp_lib.perplexity`; not read if ``alphas`` is given.
    kv_groups : int
        Key/value groups to remove in all.
    alphas : sequence of float, optional
        Alpha of each layer, the top layer first; default: the result of :func:`harp_lib.search_alphas`.

    Raises
    ------
    ValueError
        If ``kv_groups`` is no whole number of layers (the nearest are named), ``alphas`` has another length, or the
        model's attention is not of the supported kind.
    """
    total, count = len(decoder_layers(model)), layers_from_top(model, kv_groups)
    if alphas is None:
        return search_alphas(model, calibration, count).plan
    if isinstance(alphas, Mapping) or not isinstance(alphas, Iterable):
        raise ValueError(f"alphas is {alphas!r}; give a list of {count}, the top layer first")
    alphas = list(alphas)
    if len(alphas) != count:
        raise ValueError(f"{len(alphas)} alphas for {count} layers ({kv_groups} key/value groups); give one for each")
    plan = PruningPlan.value_only(total, alphas)
    check_attention(model, plan.layers)
    check_weights(model, plan)
    return plan


def harp_flap_plan(
    model: PreTrainedModel,
    calibration: Tokens,
    kv_groups: int,
    alphas: Sequence[float] | None = None,
    target_fraction: float | None = None,
) -> PruningPlan:
    """HARP's plan, and FFN channels of all layers less, chosen by FLAP on the model as HARP prunes it.

    HARP removes fewer parameters than a baseline that takes the same groups whole; the channels close the difference
    (paper, Section 3, rows "HARP + FLAP").

    Parameters
    ----------
    model, calibration, kv_groups, alphas
        As in :func:`harp_plan`; the calibration is needed in any case.
    target_fraction : float, optional
        Of all linear parameters, as :func:`harp_lib.accounting.removed_fraction` counts them; met as closely as
        whole channels can. Default: what removing ``kv_groups`` groups with all of Q, K, V and O comes to.

    Raises
    ------
    ValueError
        As :func:`harp_plan`, and if HARP alone removes more than the target, or channels cannot make up for the rest.
    """
    total, count = len(decoder_layers(model)), layers_from_top(model, kv_groups)
    every = PruningPlan(total, {layer: LayerPlan(removed_channels=(0,)) for layer in range(total)})
    check_fits(model, every)
    check_weights(model, every)
    check_slices(model, every)
    # With no alpha at zero HARP removes least: a target below that fails before the search.
    least = PruningPlan.value_only(total, [1.0] * count)
    channels_to_go(model, least, kv_groups, target_fraction)

    plan = replace(harp_plan(model, calibration, kv_groups, alphas), method=METHOD_WITH_FLAP.name)
    return without_channels(model, calibration, plan, channels_to_go(model, plan, kv_groups, target_fraction))


def channels_to_go(
    model: PreTrainedModel, plan: PruningPlan, kv_groups: int, target_fraction: float | None = None
) -> int:
    """FFN channels that bring HARP's ``plan`` nearest to the target; see :func:`harp_flap_plan`."""
    own = removed_fraction(model.config, plan)
    if target_fraction is None:
        # Where W_O has a bias and all alphas are 0, HARP already removes these biases too, and a little more.
        target_fraction = max(own, removed_fraction(model.config, top_groups_plan(model.config, kv_groups)))
    if target_fraction < own:
        raise ValueError(
            f"target_fraction {target_fraction} cannot be met: HARP alone removes {own!r}, which is the nearest"
        )
    return ffn_channels_for(model.config, plan, target_fraction)


def layers_from_top(model: PreTrainedModel, kv_groups: int) -> int:
    """How many whole layers from the top hold ``kv_groups`` key/value groups; a ValueError names the nearest."""
    held = [num_groups(layer.self_attn) for layer in reversed(decoder_layers(model))]
    whole = [sum(held[:count]) for count in range(1, len(held) + 1)]  # groups of the top 1, 2, … layers
    if kv_groups in whole:
        return whole.index(kv_groups) + 1
    nearest = [groups for groups in whole if groups < kv_groups][-1:]
    nearest += [groups for groups in whole if groups > kv_groups][:1]
    raise ValueError(
        f"{kv_groups} key/value groups are no whole number of layers, which is what HARP takes; "
        f"the nearest that are: {' or '.join(map(str, nearest))}"
    )
