"""Notebook 02: what aggregation does to norms, and whether alpha brings them back."""

from collections.abc import Mapping
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.experiments.job import HELD_OUT, SEARCHED, Job, Text
from harp_lib.measure.probe import LayerView, observe_layers
from harp_lib.measure.text import make_batches, total_nll
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.surgery import temporarily_value_only
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
            with temporarily_value_only(job.model, alphas):
                return {"corpus": first, "tokens": text.tokens, **follow(job.model, text)}

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


def follow(model: PreTrainedModel, text: Text) -> dict[str, Any]:
    """Per document: its negative log-likelihood, and the Frobenius norm of the residual stream at every depth.

    Depth ℓ is what enters layer ℓ, the last depth what leaves the top layer. Norms are taken over all tokens, and over
    all but the first of each window.
    """
    layers = decoder_layers(model)
    squares = dict.fromkeys(("all tokens", "without first"), torch.empty(0))
    found: dict[str, list[Any]] = {"nll": [], **{name: [] for name in squares}}

    def record(depth: int, H: torch.Tensor) -> None:
        lengths = H.detach().double().square().sum(-1).cpu()  # (B, N)
        squares["all tokens"][depth] += lengths.sum()
        squares["without first"][depth] += lengths[:, 1:].sum()

    def enter(depth: int):
        return lambda module, args: record(depth, args[0])

    def leave(module: torch.nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
        record(len(layers), output[0] if isinstance(output, tuple) else output)

    handles = [layer.register_forward_pre_hook(enter(depth)) for depth, layer in enumerate(layers)]
    handles.append(layers[-1].register_forward_hook(leave))
    try:
        for document in text.documents:
            for name in squares:
                squares[name] = torch.zeros(len(layers) + 1, dtype=torch.float64)
            found["nll"].append(total_nll(model, make_batches(document)))
            for name, total in squares.items():
                found[name].append(total.sqrt().tolist())
    finally:
        for handle in handles:
            handle.remove()
    return found
