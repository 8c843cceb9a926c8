"""Notebooks 01 and 02: the theory on random matrices, and what it speaks of in every layer of a real model."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.experiments.job import HELD_OUT, SEARCHED, Job, Text
from harp_lib.measure.models import random_model
from harp_lib.measure.probe import LayerView, observe_layers
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_value_only
from harp_lib.theory import (
    Products,
    attention_entropies,
    block_bound,
    block_influence,
    distance_to_consensus,
    largest_eigenvalue,
    largest_singular_value,
    norm_matching_alpha,
    norm_ratios,
    reconstructing_alpha,
)
from harp_lib.theory import similarity as mean_similarity
from harp_lib.theory.counterexamples import counterexample_table
from harp_lib.theory.inequalities import check_on_draws, norm_sweep, uniformity_sweep

Quantities = Iterable[tuple[str, Any]]


def theory(job: Job) -> None:
    """Random draws, two sweeps and the counterexamples, each a table: column → values."""
    settings, seed = job.profile["theory"], job.seed
    draws, sweep = settings["draws"], settings["sweep_draws"]
    cells = {
        "draws": ({"seed": seed, "draws": draws}, lambda: check_on_draws(draws, seed)),
        "uniformity-sweep": ({"seed": seed, "draws": sweep}, lambda: uniformity_sweep(sweep, seed)),
        "norm-sweep": ({"seed": seed, "draws": sweep}, lambda: norm_sweep(sweep, seed)),
        "counterexamples": ({}, counterexample_table),
    }
    for task, (inputs, table) in cells.items():
        job.cell("theory", task, inputs, lambda table=table: table().to_dict("list"))


def similarity(job: Job) -> None:
    """Observations of every layer, also of an untrained twin; the block bound; a repeated token."""
    twin = functools.cache(lambda: random_model(job.model.config, job.model.dtype, job.seed))
    cells = []
    for corpus, ids, inputs in texts(job):
        cells += [
            ("trained", corpus, inputs, lambda ids=ids: look_at_tokens(job.model, ids)),
            ("random", corpus, inputs | {"seed": job.seed}, lambda ids=ids: look_at_tokens(twin(), ids)),
        ]
        if corpus == job.corpora[0]:
            cells.append(("trained", "block-bound", inputs, lambda ids=ids: bound_blocks(job.model, ids[0])))
            cells.append(("trained", "repeated-tokens", inputs, lambda ids=ids: repeat_tokens(job.model, ids[0])))
    for method, task, inputs, compute in tqdm(cells, desc="layers observed", unit="cell"):
        job.cell(method, task, inputs, compute)


def norms(job: Job) -> None:
    """What aggregation does to branches; the residual stream and the likelihood under alphas of several origins."""
    settings, first, seen = job.profile["theory"], job.corpora[0], {}
    for corpus, ids, inputs in tqdm(texts(job), desc="branches", unit="cell"):
        seen[corpus] = job.cell("dense", corpus, inputs, lambda ids=ids: look_at_norms(job.model, ids))
    found = job.alphas(first)
    pooled = [Products(*numbers) for numbers in np.sum(seen[first]["products"], axis=0).tolist()]  # of each layer
    plans: dict[str, dict[int, float]] = {
        "dense": {},
        "alpha-1": dict.fromkeys(found, 1.0),
        "searched": found,
        "norm-matching": {layer: norm_matching_alpha(pooled[layer]) for layer in found},
        "reconstructing": {layer: reconstructing_alpha(pooled[layer]) for layer in found},
        "constant": dict.fromkeys(found, 0.5),  # shrinks, and knows nothing
    }
    text = job.text(first, HELD_OUT, (settings["documents"], settings["tokens"]))
    for plan, alphas in tqdm(plans.items(), desc="plans", unit="plan"):

        def compute(alphas=alphas) -> dict[str, Any]:
            return {"corpus": first, **follow(text, PruningPlan.value_only(job.num_layers, alphas))}

        inputs = text.inputs | {"alphas": {str(layer): alpha for layer, alpha in alphas.items()}}
        job.cell(plan, "reading", inputs, compute)


def texts(job: Job) -> list[tuple[str, list[torch.Tensor], dict[str, Any]]]:
    """Of each corpus its name, the first window (1, N) of each document, and what a cell that reads them depends on."""
    settings, found = job.profile["theory"], []
    for corpus in job.corpora:
        text = job.text(corpus, SEARCHED, (settings["documents"], settings["tokens"]))
        inputs = text.inputs | {"documents": len(text.documents), "tokens": sum(text.tokens)}
        found.append((corpus, [document[0].ids[None] for document in text.documents], inputs))
    return found


def observe(
    model: PreTrainedModel, ids: list[torch.Tensor], measure: Callable[[LayerView], Quantities]
) -> dict[str, list]:
    """What ``measure`` finds in each layer as the model reads texts, each (1, N): quantity → text → layer."""
    found: list[dict[str, list]] = []

    def visit(view: LayerView) -> None:
        for quantity, value in measure(view):
            found[-1].setdefault(quantity, []).append(value)

    for text in ids:
        found.append({})
        observe_layers(model, text, visit)
    return {quantity: [text[quantity] for text in found] for quantity in found[0]}


def look_at_tokens(model: PreTrainedModel, ids: list[torch.Tensor]) -> dict[str, list]:
    """How alike tokens are, whom they attend to, and what attention does: quantity → text → layer (→ head)."""

    def measure(view: LayerView) -> Quantities:
        states, first = view.value_states.double(), view.entering[:, 1:].double()  # (1, H, N, Dh)
        lost = (view.branch - view.value_only_branch)[:, 1:].double()
        is_top = view.layer == len(decoder_layers(model)) - 1
        for H in (view.entering, view.leaving) if is_top else (view.entering,):
            yield "similarity", mean_similarity(H)
            yield "distance", distance_to_consensus(H)
        yield "projected similarity", mean_similarity(view.projected)
        yield "block influence", block_influence(view.entering, view.leaving)
        yield "attention influence", block_influence(view.entering, view.entering + view.branch)
        yield from entropies(view)
        yield "value gap", ((view.attention.double() @ states - states).norm() / states.norm()).item()
        yield "branch gap", (lost.norm() / first.norm()).item()  # the first token's stream is far longer than others

    return observe(model, ids, measure)


def entropies(view: LayerView) -> Quantities:
    """Of each head."""
    yield "entropy", attention_entropies(view.attention, view.visible)[0].tolist()


def bound_blocks(model: PreTrainedModel, ids: torch.Tensor) -> dict[str, Any]:
    """Lemma 2 in each layer, read as kindly as it can be: with its own s, λ and β.

    β is the smallest root mean square of a token before the layer's two RMS norms, which is what takes the place of
    the standard deviation there.
    """

    def measure(view: LayerView) -> Quantities:
        layer, sums = decoder_layers(model)[view.layer], (view.entering, view.entering + view.branch)
        betas = tuple(H.double().square().mean(-1).sqrt().min().item() for H in sums)
        weights = [*value_output_maps(layer), *(p for p in layer.mlp.parameters() if p.dim() == 2)]
        s, largest = max(map(largest_singular_value, weights)), largest_eigenvalue(view.attention).max().item()
        yield "v", block_bound(s, largest, view.attention.shape[1], betas)

    (bounds,) = observe(model, [ids], measure)["v"]
    return {"v": bounds}


def value_output_maps(layer: torch.nn.Module) -> list[torch.Tensor]:
    """For each query head a small matrix (Dh, Dh) with the singular values of its W_V W_O (d, d)."""
    attention = layer.self_attn
    output = attention.o_proj.weight.double().unflatten(1, (-1, attention.head_dim)).transpose(0, 1)  # (H, d, Dh)
    value = attention.v_proj.weight.double().unflatten(0, (-1, attention.head_dim))  # (K, Dh, d)
    value = value.repeat_interleave(len(output) // len(value), dim=0)  # (H, Dh, d)
    left, right = torch.linalg.qr(output).R, torch.linalg.qr(value.mT).R  # W_O = Q₁ left, W_Vᵀ = Q₂ right
    return list(left @ right.mT)


@torch.no_grad()
def repeat_tokens(model: PreTrainedModel, ids: torch.Tensor, tokens: int = 3) -> dict[str, Any]:
    """One token at every position: all rows stay equal in every layer. What do the heads do, and does it matter?

    The tokens are taken from the text, evenly spaced; every quantity is token → (layer → head).
    """
    length, differences = ids.shape[1], []
    chosen = ids[0, [length * (i + 1) // (tokens + 1) for i in range(tokens)]]
    repeated = [token.expand(1, length).contiguous().to(model.device) for token in chosen]
    for text in repeated:
        dense = model(text).logits.double()
        with temporarily_value_only(model, dict.fromkeys(range(len(decoder_layers(model))), 1.0)):
            pruned = model(text).logits.double()
        differences.append(((pruned - dense).abs().max() / dense.std()).item())
    return {"tokens": chosen.tolist(), "logit difference": differences, **observe(model, repeated, entropies)}


def look_at_norms(model: PreTrainedModel, ids: list[torch.Tensor]) -> dict[str, list]:
    """‖ÂV‖/‖V‖ of each head, and the products of stream and branches: quantity → text → layer.

    Products leave out the first token, whose residual stream is far longer than any other's in many models.
    """

    def measure(view: LayerView) -> Quantities:
        yield "ratios", norm_ratios(view.attention, view.value_states)[0].tolist()
        yield "products", Products.of(*(H[:, 1:] for H in (view.entering, view.branch, view.value_only_branch)))

    return observe(model, ids, measure)


def follow(text: Text, plan: PruningPlan) -> dict[str, Any]:
    """Per document: its negative log-likelihood, and the Frobenius norm of the residual stream at every depth.

    Depth ℓ is what enters layer ℓ, the last depth what leaves the top layer. Norms leave out each window's first token.
    """
    norms = []  # depth → document
    for hidden in text.passing(plan, 0):
        squares = [H[1:].double().square().sum().item() for batch in hidden for H in batch]  # of each window (N, d)
        norms.append([total**0.5 for total in text.by_document(squares)])
    return text.nll(plan) | {"without first": list(zip(*norms, strict=True))}
