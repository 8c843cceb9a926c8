"""Notebook 01: similarity, consensus and attention in every layer of a real model; and what needs no model (01, 02)."""

import functools
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.experiments.job import SEARCHED, Job
from harp_lib.measure.models import random_model
from harp_lib.measure.probe import LayerView, observe_layers
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.surgery import temporarily_value_only
from harp_lib.theory import (
    attention_entropies,
    block_bound,
    block_influence,
    distance_to_consensus,
    distances_to_consensus,
    largest_eigenvalue,
    largest_singular_value,
)
from harp_lib.theory import similarity as mean_similarity
from harp_lib.theory.counterexamples import counterexample_table
from harp_lib.theory.inequalities import check_on_draws, norm_sweep, uniformity_sweep


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
    settings = job.profile["theory"]
    twin = functools.cache(lambda: random_model(job.model.config, job.model.dtype, job.seed))
    texts = [job.text(corpus, SEARCHED, (settings["documents"], settings["tokens"])) for corpus in job.corpora]
    cells = []
    for text in texts:
        corpus, ids = text.corpus.name, [document[0].ids[None] for document in text.documents]  # each (1, N)
        inputs = text.inputs | {"documents": len(ids), "tokens": sum(text.tokens)}
        cells += [
            ("trained", corpus, inputs, lambda ids=ids: observe(job.model, ids)),
            ("random", corpus, inputs | {"seed": job.seed}, lambda ids=ids: observe(twin(), ids)),
        ]
        if text is texts[0]:
            cells.append(("trained", "block-bound", inputs, lambda ids=ids: bound_blocks(job.model, ids[0])))
            cells.append(("trained", "repeated-tokens", inputs, lambda ids=ids: repeat_tokens(job.model, ids[0])))
    for method, task, inputs, compute in tqdm(cells, desc="layers observed", unit="cell"):
        job.cell(method, task, inputs, compute)


def observe(model: PreTrainedModel, texts: list[torch.Tensor]) -> dict[str, Any]:
    """What is measured in each layer of each text: quantity → text → layer (→ head)."""
    found: list[dict[str, list[Any]]] = []

    def visit(view: LayerView) -> None:
        states = view.value_states.double()  # (1, H, N, Dh)
        averaged = view.attention.double() @ states
        lost = (view.branch - view.value_only_branch)[:, 1:].double().norm()
        layer = {
            "similarity": mean_similarity(view.entering),
            "similarity without first": mean_similarity(view.entering[:, 1:]),
            "projected similarity": mean_similarity(view.projected),
            "distance": distance_to_consensus(view.entering),
            "distance without first": distance_to_consensus(view.entering[:, 1:]),
            "norm": view.entering.double().norm().item(),
            "norm without first": view.entering[:, 1:].double().norm().item(),
            "block influence": block_influence(view.entering, view.leaving),
            "attention influence": block_influence(view.entering, view.entering + view.branch),
            "entropy": attention_entropies(view.attention, view.visible)[0].tolist(),
            "value contraction": (distances_to_consensus(averaged) / distances_to_consensus(states))[0].tolist(),
            "value distance": ((states - states.mean(-2, keepdim=True)).norm() / states.norm()).item(),
            "value gap": ((averaged - states).norm() / states.norm()).item(),
            "branch gap": (lost / view.entering[:, 1:].double().norm()).item(),
        }
        for quantity, value in layer.items():
            found[-1].setdefault(quantity, []).append(value)
        if view.layer == len(decoder_layers(model)) - 1:  # the stream that leaves the top
            for name, H in (("", view.leaving), (" without first", view.leaving[:, 1:])):
                found[-1][f"similarity{name}"].append(mean_similarity(H))
                found[-1][f"distance{name}"].append(distance_to_consensus(H))
                found[-1][f"norm{name}"].append(H.double().norm().item())

    for ids in texts:
        found.append({})
        observe_layers(model, ids, visit)
    return {quantity: [text[quantity] for text in found] for quantity in found[0]}


def bound_blocks(model: PreTrainedModel, ids: torch.Tensor) -> dict[str, Any]:
    """Lemma 2 in each layer, read as kindly as it can be: with its own s, λ and β.

    β is the smallest root mean square of a token before the layer's two RMS norms, which is what takes the place of
    the standard deviation there.
    """
    rows: dict[str, list[float]] = {key: [] for key in ("v", "s", "largest λ", "beta 1", "beta 2")}

    def visit(view: LayerView) -> None:
        layer = decoder_layers(model)[view.layer]
        middle = view.entering + view.branch
        betas = tuple(H.double().square().mean(-1).sqrt().min().item() for H in (view.entering, middle))
        weights = [*value_output_maps(layer), *(p for p in layer.mlp.parameters() if p.dim() == 2)]
        s, largest = max(map(largest_singular_value, weights)), largest_eigenvalue(view.attention).max().item()
        rows["v"].append(block_bound(s, largest, view.attention.shape[1], betas))
        rows["s"].append(s)
        rows["largest λ"].append(largest)
        rows["beta 1"].append(betas[0])
        rows["beta 2"].append(betas[1])

    observe_layers(model, ids, visit)
    return rows


def value_output_maps(layer: torch.nn.Module) -> list[torch.Tensor]:
    """For each query head a small matrix (Dh, Dh) with the singular values of its W_V W_O (d, d)."""
    attention = layer.self_attn
    output = attention.o_proj.weight.double().unflatten(1, (-1, attention.head_dim)).transpose(0, 1)  # (H, d, Dh)
    value = attention.v_proj.weight.double().unflatten(0, (-1, attention.head_dim))  # (K, Dh, d)
    value = value.repeat_interleave(len(output) // len(value), dim=0)  # (H, Dh, d)
    left, right = torch.linalg.qr(output).R, torch.linalg.qr(value.mT).R  # W_O = Q₁ left, W_Vᵀ = Q₂ right
    return list(left @ right.mT)


def repeat_tokens(model: PreTrainedModel, ids: torch.Tensor, tokens: int = 3) -> dict[str, Any]:
    """One token at every position: all rows stay equal in every layer. What do the heads do, and does it matter?

    The tokens are taken from the text, evenly spaced; every quantity is token → layer.
    """
    length = ids.shape[1]
    chosen = ids[0, [length * (i + 1) // (tokens + 1) for i in range(tokens)]]
    found: dict[str, Any] = {"tokens": chosen.tolist(), "logit difference": []}
    found |= {quantity: [] for quantity in ("similarity", "relative distance", "entropy")}

    def visit(view: LayerView) -> None:
        distance = distance_to_consensus(view.entering) / view.entering.double().norm().item()
        found["similarity"][-1].append(mean_similarity(view.entering))
        found["relative distance"][-1].append(distance)
        found["entropy"][-1].append(attention_entropies(view.attention, view.visible)[0].tolist())

    for token in chosen:
        repeated = token.expand(1, length).contiguous().to(model.device)
        for quantity in ("similarity", "relative distance", "entropy"):
            found[quantity].append([])
        observe_layers(model, repeated, visit)
        with torch.no_grad():
            dense = model(repeated).logits.double()
            with temporarily_value_only(model, dict.fromkeys(range(len(decoder_layers(model))), 1.0)):
                pruned = model(repeated).logits.double()
        found["logit difference"].append(((pruned - dense).abs().max() / dense.std()).item())
    return found
