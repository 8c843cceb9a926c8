"""Notebooks 01 and 02: the theory on random matrices, and what it speaks of in every layer of a
real model.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from harp_lib import theory as measures
from harp_lib.evaluation.probe import LayerView, observe_layers
from harp_lib.experiments.job import HELD_OUT, SEARCHED, Job, Text
from harp_lib.experiments.random_matrices import check_on_draws, norm_sweep, uniformity_sweep
from harp_lib.models.load import random_model
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_value_only
from harp_lib.theory.counterexamples import counterexample_table

Quantities = Iterable[tuple[str, Any]]
Measure = Callable[[PreTrainedModel, LayerView], Quantities]


def theory(job: Job) -> None:
    """Random draws, two sweeps and the counterexamples, each a table: column → values."""
    draws, sweep = (
        {"seed": job.seed, "draws": job.profile["theory"][name]}
        for name in ("draws", "sweep_draws")
    )
    tables = [("draws", draws, check_on_draws), ("uniformity-sweep", sweep, uniformity_sweep)]
    tables += [("norm-sweep", sweep, norm_sweep), ("counterexamples", {}, counterexample_table)]
    for task, inputs, table in tables:
        job.cell(
            "theory",
            task,
            inputs,
            lambda table, inputs: table(**inputs).to_dict("list"),
            table,
            inputs,
        )


def similarity(job: Job) -> None:
    """Observations of every layer, also of an untrained twin; the block bound; a repeated token."""
    model, cells = job.model, []
    twin = functools.cache(lambda: random_model(model.config, model.dtype, job.seed))
    for corpus, ids, inputs in _texts(job):
        of_twin = inputs | {"seed": job.seed}
        cells.append(("trained", corpus, inputs, observe, model, ids, tokens_of))
        cells.append(("random", corpus, of_twin, lambda ids: observe(twin(), ids, tokens_of), ids))
        if corpus == job.corpora[0]:
            cells.append(("trained", "block-bound", inputs, bound_blocks, model, ids[0]))
            cells.append(("trained", "repeated-tokens", inputs, repeat_tokens, model, ids[0]))
    job.cells("layers observed", cells)


def norms(job: Job) -> None:
    """What aggregation does to branches; the residual stream and the likelihood under alphas of
    several origins.
    """
    cells = [
        ("dense", corpus, inputs, observe, job.model, ids, norms_of)
        for corpus, ids, inputs in _texts(job)
    ]
    seen, found = job.cells("branches", cells)[0]["products"], job.alphas(job.corpora[0])
    pooled = [
        measures.Products(*numbers) for numbers in np.sum(seen, axis=0).tolist()
    ]  # of each layer
    plans: dict[str, dict[int, float]] = {
        "dense": {},
        "alpha-1": dict.fromkeys(found, 1.0),
        "searched": found,
        "norm-matching": {layer: measures.norm_matching_alpha(pooled[layer]) for layer in found},
        "reconstructing": {layer: measures.reconstructing_alpha(pooled[layer]) for layer in found},
        "constant": dict.fromkeys(found, 0.5),  # shrinks, and knows nothing
    }
    text = _text(job, job.corpora[0], HELD_OUT)
    cells = [
        (key, "reading", text.inputs | {"alphas": alphas}, follow, text, alphas)
        for key, alphas in plans.items()
    ]
    job.cells("plans", cells)


def _text(job: Job, corpus: str, split: str) -> Text:
    return job.text(
        corpus, split, (job.profile["theory"]["documents"], job.profile["theory"]["tokens"])
    )


def _texts(job: Job) -> Iterator[tuple[str, list[torch.Tensor], dict[str, Any]]]:
    """Of each corpus its name, the first window (1, N) of each document, and what a cell that reads
    them depends on.
    """
    for text in (_text(job, corpus, SEARCHED) for corpus in job.corpora):
        inputs = text.inputs | {"documents": len(text.documents), "tokens": sum(text.tokens)}
        yield text.corpus.name, [document[0].ids[None] for document in text.documents], inputs


def observe(model: PreTrainedModel, ids: list[torch.Tensor], measure: Measure) -> dict[str, list]:
    """What ``measure`` finds in each layer as the model reads texts, each (1, N): quantity → text →
    layer (→ head).
    """
    found: list[dict[str, list]] = []

    def visit(view: LayerView) -> None:
        for quantity, value in measure(model, view):
            found[-1].setdefault(quantity, []).append(value)

    for text in ids:
        found.append({})
        observe_layers(model, text, visit)
    return {quantity: [text[quantity] for text in found] for quantity in found[0]}


def tokens_of(model: PreTrainedModel, view: LayerView) -> Quantities:
    """How alike tokens are, whom they attend to, and what attention does."""
    states, first = view.value_states.double(), view.entering[:, 1:].double()  # (1, H, N, Dh)
    lost = (view.branch - view.value_only_branch)[:, 1:].double()
    is_top = view.layer == len(decoder_layers(model)) - 1
    for H in (view.entering, view.leaving) if is_top else (view.entering,):
        yield "similarity", measures.similarity(H)
        yield "distance", measures.distance_to_consensus(H)
    yield "projected similarity", measures.similarity(view.projected)
    yield "block influence", measures.block_influence(view.entering, view.leaving)
    yield (
        "attention influence",
        measures.block_influence(view.entering, view.entering + view.branch),
    )
    yield from entropies_of(model, view)
    yield "value gap", ((view.attention.double() @ states - states).norm() / states.norm()).item()
    yield (
        "branch gap",
        (lost.norm() / first.norm()).item(),
    )  # the first token's stream is far longer than others


def entropies_of(model: PreTrainedModel, view: LayerView) -> Quantities:
    """Of each head."""
    yield "entropy", measures.attention_entropies(view.attention, view.visible)[0].tolist()


def norms_of(model: PreTrainedModel, view: LayerView) -> Quantities:
    """‖ÂV‖/‖V‖ of each head; products of stream and branches, without the first token, whose stream
    is far longer.
    """
    yield "ratios", measures.norm_ratios(view.attention, view.value_states)[0].tolist()
    yield (
        "products",
        measures.Products.of(
            *(H[:, 1:] for H in (view.entering, view.branch, view.value_only_branch))
        ),
    )


def bound_blocks(model: PreTrainedModel, ids: torch.Tensor) -> dict[str, Any]:
    """Lemma 2 in each layer, read as kindly as it can be: with its own s, λ and β."""

    def bound(model: PreTrainedModel, view: LayerView) -> Quantities:
        layer, sums = (
            decoder_layers(model)[view.layer],
            (view.entering, view.entering + view.branch),
        )
        # The smallest root mean square of a token before each RMS norm, in place of a standard
        # deviation.
        betas = tuple(H.double().square().mean(-1).sqrt().min().item() for H in sums)
        weights = [*value_output_maps(layer), *(p for p in layer.mlp.parameters() if p.dim() == 2)]
        s, eigenvalues = (
            max(map(measures.largest_singular_value, weights)),
            measures.largest_eigenvalue(view.attention),
        )
        yield "v", measures.block_bound(s, eigenvalues.max().item(), view.attention.shape[1], betas)

    return {"v": observe(model, [ids], bound)["v"][0]}


def value_output_maps(layer: torch.nn.Module) -> list[torch.Tensor]:
    """For each query head a small matrix (Dh, Dh) with the singular values of its W_V W_O (d, d)."""
    attention = layer.self_attn
    output = (
        attention.o_proj.weight.double().unflatten(1, (-1, attention.head_dim)).transpose(0, 1)
    )  # (H, d, Dh)
    value = attention.v_proj.weight.double().unflatten(0, (-1, attention.head_dim))  # (K, Dh, d)
    value = value.repeat_interleave(len(output) // len(value), dim=0)  # (H, Dh, d)
    left, right = (
        torch.linalg.qr(output).R,
        torch.linalg.qr(value.mT).R,
    )  # W_O = Q₁ left, W_Vᵀ = Q₂ right
    return list(left @ right.mT)


@torch.no_grad()
def repeat_tokens(model: PreTrainedModel, ids: torch.Tensor, tokens: int = 3) -> dict[str, Any]:
    """One token of the text at every position: rows stay equal in every layer. What do heads do,
    and does it matter?
    """
    length, differences = ids.shape[1], []
    chosen = ids[0, [length * (i + 1) // (tokens + 1) for i in range(tokens)]]
    repeated = [token.expand(1, length).contiguous().to(model.device) for token in chosen]
    for text in repeated:
        dense = model(text).logits.double()
        with temporarily_value_only(model, dict.fromkeys(range(len(decoder_layers(model))), 1.0)):
            pruned = model(text).logits.double()
        differences.append(((pruned - dense).abs().max() / dense.std()).item())
    return {
        "tokens": chosen.tolist(),
        "logit difference": differences,
        **observe(model, repeated, entropies_of),
    }


def follow(text: Text, alphas: Mapping[int, float]) -> dict[str, Any]:
    """Each document's likelihood, and the norm of the residual stream as it enters each layer and
    leaves the top.
    """
    plan, norms = PruningPlan.value_only(text.job.num_layers, alphas), []  # depth → document
    for hidden in text.passing(0, text.job.pruned(plan)):
        # Of each window (N, d), without its first token.
        squares = [H[1:].double().square().sum().item() for batch in hidden for H in batch]
        norms.append([total**0.5 for total in text.by_document(squares)])
    return (
        {"corpus": text.corpus.name}
        | text.nll(plan)
        | {"without first": list(zip(*norms, strict=True))}
    )
