"""Notebook 02: what aggregation does to norms, and whether alpha brings them back."""

from collections.abc import Mapping
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.experiments.job import HELD_OUT, SEARCHED, Job, Text
from harp_lib.measure.probe import LayerView, observe_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.theory import Products, norm_matching_alpha, norm_ratios, reconstructing_alpha


def norms(job: Job) -> None:
    """What aggregation does to branches; the residual stream and the likelihood under alphas of several origins."""
    settings, first = job.profile["theory"], job.corpora[0]
    size, seen = (settings["documents"], settings["tokens"]), {}
    for corpus in tqdm(job.corpora, desc="branches", unit="cell"):
        text = job.text(corpus, SEARCHED, size)
        inputs = text.inputs | {"documents": len(text.documents), "tokens": sum(text.tokens)}
        seen[corpus] = job.cell("dense", corpus, inputs, lambda text=text: observe(job.model, text))
    found = job.alphas(first)
    pooled = [sum(layer[1:], layer[0]) for layer in _by_layer(seen[first]["products"])]
    plans: dict[str, Mapping[int, float]] = {
        "dense": {},
        "alpha-1": dict.fromkeys(found, 1.0),
        "searched": found,
        "norm-matching": {layer: norm_matching_alpha(pooled[layer]) for layer in found},
        "reconstructing": {layer: reconstructing_alpha(pooled[layer]) for layer in found},
        "constant": dict.fromkeys(found, 0.5),  # shrinks, and knows nothing
    }
    text = job.text(first, HELD_OUT, size)
    for plan, alphas in tqdm(plans.items(), desc="plans", unit="plan"):

        def compute(alphas=alphas) -> dict[str, Any]:
            return {"corpus": first, **follow(text, PruningPlan.value_only(job.num_layers, alphas))}

        inputs = text.inputs | {"alphas": {str(layer): alpha for layer, alpha in alphas.items()}}
        job.cell(plan, "reading", inputs, compute)


def _by_layer(products: list[list[list[float]]]) -> list[list[Products]]:
    """Products [text][layer] as [layer][text]."""
    return [[Products(*numbers) for numbers in layer] for layer in zip(*products, strict=True)]


def observe(model: PreTrainedModel, text: Text) -> dict[str, Any]:
    """Per text and layer: ‖ÂV‖/‖V‖ of each head, and the products of stream and branches without the first token.

    In many models the first token's residual stream is far longer than any other's and would decide every norm alone,
    and its values are short. So each ratio is also taken without it, the rest of each query's attention scaled to 1.
    """
    found: dict[str, list[list[Any]]] = {"ratios": [], "ratios without first": [], "products": []}

    def visit(view: LayerView) -> None:
        A, V = view.attention.double(), view.value_states  # (1, H, N, N), (1, H, N, Dh)
        found["ratios"][-1].append(norm_ratios(A, V)[0].tolist())
        rest = A[..., 1:, 1:]
        kept = rest.sum(-1, keepdim=True)
        alone = torch.eye(rest.shape[-1], dtype=rest.dtype, device=rest.device)  # attended to the first token only
        rest = torch.where(kept > 1e-6, rest / kept, alone)
        found["ratios without first"][-1].append(norm_ratios(rest, V[..., 1:, :])[0].tolist())
        streams = (x[:, 1:] for x in (view.entering, view.branch, view.value_only_branch))
        found["products"][-1].append(Products.of(*streams))

    for window, *_ in text.documents:
        for values in found.values():
            values.append([])
        observe_layers(model, window.ids[None], visit)
    return found


def follow(text: Text, plan: PruningPlan) -> dict[str, Any]:
    """Per document: its negative log-likelihood, and the Frobenius norm of the residual stream at every depth.

    Depth ℓ is what enters layer ℓ, the last depth what leaves the top layer. Norms are taken over all tokens, and over
    all but the first of each window.
    """
    found: dict[str, list[list[float]]] = {"all tokens": [], "without first": []}  # depth → document
    for hidden in text.passing(plan, 0):
        squares = [H.double().square().sum(-1).cpu() for batch in hidden for H in batch]  # of each window (N,)
        for name, begin in (("all tokens", 0), ("without first", 1)):
            totals = text.by_document(lengths[begin:].sum().item() for lengths in squares)
            found[name].append([total**0.5 for total in totals])
    return text.nll(plan) | {name: list(zip(*norms, strict=True)) for name, norms in found.items()}
