"""What notebook 08 times: a model, and three ways to take as many key/value groups from it."""

import copy
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from harp_lib.accounting import PAPER_MODELS, count_groups, paper_configs
from harp_lib.experiments.alpha_study import EXPERIMENT as ALPHA
from harp_lib.experiments.alpha_study import AlphaStudy
from harp_lib.experiments.score_study import release_memory
from harp_lib.measure.models import load_model
from harp_lib.pruning.architecture import check_plan, decoder_layers
from harp_lib.pruning.layers import folds
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.pruning.surgery import swap_modules
from harp_lib.published import published_alphas
from harp_lib.results import ResultStore

DENSE, HARP, FOLDED, THINNED = VARIANTS = ("dense", "harp", "harp-folded", "thinned")
LEFT_OUT = {
    FOLDED: "no pruned layer has query heads that share a value head",
    THINNED: "its attention without some of its heads is not the same as with these heads masked",
}
"""Why a model may lack a variant."""
DEVIATION = 0.02  # of random weights, as models of this kind are initialised


class Variant(NamedTuple):
    """A model that is ready to be timed, and how it was pruned; no plan: dense."""

    model: PreTrainedModel
    plan: PruningPlan | None = None
    fold_output: bool = False


def make_variants(model: PreTrainedModel, plan: PruningPlan) -> dict[str, Variant]:
    """The dense model, HARP's plan carried out in two ways, and as many groups taken from all layers evenly.

    All share the weights of ``model``: what a variant has of its own are sliced and folded projections. Alpha is left
    out. In a pruned model it is in the weights and takes no time; only where it is 0 does the rest of the attention
    go too, and that it does here. A variant that a model cannot have is left out: ``LEFT_OUT`` says why.
    """
    variants = {DENSE: Variant(model), HARP: _variant(model, plan)}
    if any(alpha and folds(decoder_layers(model)[layer].self_attn) for layer, alpha in plan.alphas.items()):
        variants[FOLDED] = _variant(model, plan, fold_output=True)
    thinned = thinned_plan(model.config, plan)
    try:
        check_plan(model, thinned)
    except ValueError:  # as of a norm over all heads
        return variants
    return variants | {THINNED: _variant(model, thinned)}


def _variant(model: PreTrainedModel, plan: PruningPlan, fold_output: bool = False) -> Variant:
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    swap_modules(twin, plan, fold_output)
    return Variant(twin, plan, fold_output)


def thinned_plan(config: PreTrainedConfig, plan: PruningPlan) -> PruningPlan:
    """The plan that takes as many groups as ``plan`` takes, as evenly from all layers as whole groups allow."""
    groups = count_groups(config, plan)
    wanted, total = sum(total - kept for total, kept in groups), sum(total for total, _ in groups)
    layers, seen, taken = {}, 0, 0
    for layer, (here, _) in enumerate(groups):
        seen += here
        if lost := seen * wanted // total - taken:
            layers[layer] = LayerPlan(removed_groups=tuple(range(lost)))
            taken += lost
    return PruningPlan(plan.num_layers, layers, THINNED)


def load_dense(name: str, profile: dict[str, Any], seed: int) -> tuple[PreTrainedModel, PruningPlan]:
    """A model in the dtype that it is timed in, and HARP's plan for it.

    Parameters
    ----------
    name : str
        A model as :func:`harp_lib.load_model` knows it: its alpha is read from notebook 03, or searched where that has
        not run. Or a key of ``PAPER_MODELS``: the shape of that model with random weights, on which no time depends,
        and the published alpha.
    profile : dict
        From :func:`harp_lib.profiles.load_profile`.
    seed : int
        Of random weights.
    """
    release_memory()  # of a model that was timed before
    settings = profile["efficiency"]
    if name not in PAPER_MODELS:
        plan = searched_plan(name, profile)
        return load_model(name, profile["dtype"])[0], plan  # on one device: between several, copies would be timed
    whole = paper_configs()[name]
    config = cut_config(whole, settings["layers"] or whole.num_hidden_layers)
    return random_model(config, profile["dtype"], seed), published_plan(name, config.num_hidden_layers)


def searched_plan(name: str, profile: dict[str, Any]) -> PruningPlan:
    """HARP's plan, of the alpha that is searched on the profile's first corpus."""
    model, tokenizer = load_model(name, profile["dtype"], profile["device_map"])
    study = AlphaStudy(name, model, tokenizer, profile, ResultStore(profile["name"], ALPHA))
    corpus = profile["corpora"][0]
    plan = PruningPlan.value_only(len(decoder_layers(model)), study.search([corpus])[corpus]["alphas"])
    del model, study
    release_memory()
    return plan


def published_plan(name: str, num_layers: int) -> PruningPlan:
    """HARP's plan of the paper's figure "alpha_search"; for a model cut to some layers, the same share from the top."""
    published, whole = published_alphas()[name], paper_configs()[name].num_hidden_layers
    top_down = [published[layer] for layer in sorted(published, reverse=True)]
    return PruningPlan.value_only(num_layers, top_down[: max(1, round(len(top_down) * num_layers / whole))])


def cut_config(config: PreTrainedConfig, num_layers: int) -> PreTrainedConfig:
    """The config of the same model with its first layers only."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = num_layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:num_layers]
    return config


@torch.no_grad()
def random_model(config: PreTrainedConfig, dtype: str, seed: int) -> PreTrainedModel:
    """A model of random weights, on the GPU if there is one; each weight is drawn once, in its place."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with device, no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.tie_weights()
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, DEVIATION, generator=generator)
        elif name.endswith(".bias"):
            parameter.zero_()  # gains of norms are what they begin with
    return model.eval()
