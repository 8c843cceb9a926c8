"""The experiment of notebook 01: similarity, consensus and attention in every layer of a real model."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel

from harp_lib.experiments.theory_study import Texts
from harp_lib.measure.probe import LayerView, observe_layers
from harp_lib.methods.alpha_search import model_digest
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.surgery import temporarily_value_only
from harp_lib.results import Cells, ResultStore
from harp_lib.theory import (
    attention_entropies,
    block_bound,
    block_influence,
    contraction_factors,
    distance_to_consensus,
    distances_to_consensus,
    largest_eigenvalue,
    largest_singular_value,
    similarity,
)

EXPERIMENT = "similarity"
TRAINED, RANDOM = "trained", "random"  # in the place of a method: the model itself, and its untrained twin


def random_twin(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """A model of the same architecture with freshly initialised weights, as training begins."""
    device = model.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(seed)
        twin = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), dtype=model.dtype)
    return twin.eval()


def study_similarity(
    name: str,
    model: PreTrainedModel,
    texts: dict[str, Texts],
    settings: dict[str, Any],
    seed: int,
    store: ResultStore,
) -> None:
    """All cells of one model: observations of it and of its random twin, the block bound, a repeated token."""
    base = {"model": name, "digest": model_digest(model), "dtype": str(model.dtype)}
    twin = functools.cache(lambda: random_twin(model, seed))
    jobs: list[tuple[str, str, dict[str, Any], Callable[[], dict[str, Any]]]] = []
    for corpus, part in texts.items():
        few = part.ids[: settings["eigen_documents"]]
        wanted = base | part.inputs
        jobs += [
            (TRAINED, corpus, wanted, lambda part=part: observe(model, part.ids)),
            (RANDOM, corpus, wanted | {"seed": seed}, lambda part=part: observe(twin(), part.ids)),
            (TRAINED, f"contraction-{corpus}", wanted | {"read": len(few)}, lambda few=few: contraction(model, few)),
        ]
    first = next(iter(texts.values()))
    jobs.append((TRAINED, "block-bound", base | first.inputs, lambda: bound_blocks(model, first.ids[0])))
    jobs.append((TRAINED, "repeated-tokens", base | first.inputs, lambda: repeat_tokens(model, first.ids[0])))
    for method, task, wanted, compute in tqdm(jobs, desc="layers observed", unit="cell"):
        store.cell(name, method, task, wanted, lambda partial, compute=compute: compute())


def observe(model: PreTrainedModel, texts: list[torch.Tensor]) -> dict[str, Any]:
    """What is measured in each layer of each text: quantity → text → layer (→ head)."""
    found: list[dict[str, list[Any]]] = []

    def visit(view: LayerView) -> None:
        states = view.value_states.double()  # (1, H, N, Dh)
        averaged = view.attention.double() @ states
        lost = (view.branch - view.value_only_branch)[:, 1:].double().norm()
        layer = {
            "similarity": similarity(view.entering),
            "similarity without first": similarity(view.entering[:, 1:]),
            "projected similarity": similarity(view.projected),
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
                found[-1][f"similarity{name}"].append(similarity(H))
                found[-1][f"distance{name}"].append(distance_to_consensus(H))
                found[-1][f"norm{name}"].append(H.double().norm().item())

    for ids in texts:
        found.append({})
        observe_layers(model, ids, visit)
    return {quantity: [text[quantity] for text in found] for quantity in found[0]}


def contraction(model: PreTrainedModel, texts: list[torch.Tensor]) -> dict[str, Any]:
    """√λ_max of every head: text → layer → head."""
    found: list[list[list[float]]] = []
    for ids in texts:
        found.append([])
        observe_layers(model, ids, lambda view: found[-1].append(contraction_factors(view.attention)[0].tolist()))
    return {"contraction": found}


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
        found["similarity"][-1].append(similarity(view.entering))
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


def layer_frame(cells: Cells) -> pd.DataFrame:
    """Every quantity that has one value a layer: model, method, corpus, quantity, document, layer, value."""
    return pd.DataFrame(
        (model, method, task, quantity, document, layer, value)
        for (model, method, task), cell in cells.items()
        if "block influence" in cell["result"]
        for quantity, documents in cell["result"].items()
        if quantity not in ("entropy", "value contraction")
        for document, layers in enumerate(documents)
        for layer, value in enumerate(layers)
    ).set_axis(["model", "method", "corpus", "quantity", "document", "layer", "value"], axis=1)


def head_frame(cells: Cells) -> pd.DataFrame:
    """Every head: model, method, corpus, document, layer, head, entropy, contraction, similarity of its input.

    ``contraction`` is d_M(ÂV) / d_M(V), and the similarity that of the normalised input.
    """
    columns = ["model", "method", "corpus", "document", "layer", "head", "entropy", "contraction", "similarity"]
    return pd.DataFrame(
        (model, method, task, document, layer, head, entropy, result["value contraction"][document][layer][head], sim)
        for (model, method, task), result in ((key, cell["result"]) for key, cell in cells.items())
        if "block influence" in result
        for document, similarities in enumerate(result["projected similarity"])
        for layer, sim in enumerate(similarities)
        for head, entropy in enumerate(result["entropy"][document][layer])
    ).set_axis(columns, axis=1)


def growth_frame(layers: pd.DataFrame, quantity: str = "distance without first") -> pd.DataFrame:
    """What each layer does to d_M: model, method, corpus, document, layer, growth."""
    keys = ["model", "method", "corpus", "document"]
    rows = layers[layers["quantity"] == quantity].sort_values([*keys, "layer"])
    growth = rows["value"] / rows.groupby(keys)["value"].shift()
    rows = rows.assign(growth=growth, layer=rows["layer"] - 1)
    return rows.dropna(subset="growth")[[*keys, "layer", "growth"]]


def contraction_frame(cells: Cells) -> pd.DataFrame:
    """√λ_max of every head: model, corpus, document, layer, head, factor."""
    return pd.DataFrame(
        (model, task.removeprefix("contraction-"), document, layer, head, factor)
        for (model, _, task), cell in cells.items()
        if task.startswith("contraction-")
        for document, layers in enumerate(cell["result"]["contraction"])
        for layer, heads in enumerate(layers)
        for head, factor in enumerate(heads)
    ).set_axis(["model", "corpus", "document", "layer", "head", "factor"], axis=1)


def bound_frame(cells: Cells) -> pd.DataFrame:
    """Lemma 2 in each layer: model, layer, v, s, largest λ, both β."""
    parts = [
        pd.DataFrame(cell["result"]).rename_axis("layer").reset_index().assign(model=model)
        for (model, _, task), cell in cells.items()
        if task == "block-bound"
    ]
    return pd.concat(parts, ignore_index=True)
