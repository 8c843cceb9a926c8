"""The experiment of notebook 02: what aggregation does to norms, and whether alpha brings them back."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harp_lib.experiments.alpha_study import EXPERIMENT as ALPHA_EXPERIMENT
from harp_lib.experiments.alpha_study import HELD_OUT, AlphaStudy
from harp_lib.experiments.theory_study import Texts
from harp_lib.measure.corpora import Window
from harp_lib.measure.likelihood import make_batches, total_nll
from harp_lib.measure.probe import LayerView, observe_layers
from harp_lib.methods.alpha_search import model_digest
from harp_lib.pruning.architecture import decoder_layers
from harp_lib.pruning.surgery import temporarily_value_only
from harp_lib.results import Cells, ResultStore
from harp_lib.theory import norm_ratios
from harp_lib.theory.rescaling import Products, norm_matching_alpha, reconstructing_alpha

EXPERIMENT = "norm_change"
PLANS = {
    "dense": "dense",
    "alpha-1": "HARP, α = 1",
    "searched": "HARP, searched α",
    "norm-matching": "HARP, norm-matching α",
    "reconstructing": "HARP, branch-keeping α",
    "constant": "HARP, α = 0.5",
}


def study_norms(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: dict[str, Texts],
    profile: dict[str, Any],
    store: ResultStore,
) -> None:
    """All cells of one model: what aggregation does, the alphas that follow, the residual stream and the perplexity.

    Alpha is searched on the first corpus as in notebook 03: a search that is stored is read, whatever ``store`` was
    told to force, and a new one is stored for notebook 03.
    """
    base = {"model": name, "digest": model_digest(model), "dtype": str(model.dtype)}
    corpus = next(iter(texts))
    for task, part in tqdm(texts.items(), desc="branches", unit="cell"):
        store.cell(name, "dense", task, base | part.inputs, lambda partial, part=part: observe(model, part.ids))

    alphas = AlphaStudy(name, model, tokenizer, profile, ResultStore(profile["name"], ALPHA_EXPERIMENT))
    found = alphas.search([corpus])[corpus]["alphas"]
    top = range(len(decoder_layers(model)) - 1, -1, -1)[: len(found)]
    products = pooled_products(store.cells)[name, corpus]
    plans: dict[str, Mapping[int, float]] = {
        "dense": {},
        "alpha-1": dict.fromkeys(top, 1.0),
        "searched": dict(zip(top, found, strict=True)),
        "norm-matching": {layer: norm_matching_alpha(products[layer]) for layer in top},
        "reconstructing": {layer: reconstructing_alpha(products[layer]) for layer in top},
        "constant": dict.fromkeys(top, 0.5),  # shrinks, and knows nothing
    }
    held_out = alphas.texts[corpus, HELD_OUT]
    text = {"corpus": corpus, "split": HELD_OUT, "source": held_out.corpus.source, "sha256": held_out.corpus.sha256}
    text["context"] = alphas.inputs["context"]
    for plan, chosen in tqdm(plans.items(), desc="plans", unit="plan"):

        def compute(partial, chosen=chosen):
            with temporarily_value_only(model, chosen):
                return {"corpus": corpus, "tokens": held_out.tokens, **read(model, held_out.documents)}

        wanted = base | text | {"alphas": {str(layer): alpha for layer, alpha in chosen.items()}}
        store.cell(name, plan, "reading", wanted, compute)


def observe(model: PreTrainedModel, texts: list[torch.Tensor]) -> dict[str, Any]:
    """Per text and layer: ‖ÂV‖/‖V‖ of each head, and the products of stream and branches without the first token.

    In many models the first token's residual stream is far longer than any other's and would decide every norm alone,
    and its values are short. So each ratio is also taken without it, the rest of each query's attention scaled to 1.
    """
    found: dict[str, list[list[Any]]] = {"ratios": [], "ratios without first": [], "products": []}

    def visit(view: LayerView) -> None:
        A, V = view.attention.double(), view.value_states
        found["ratios"][-1].append(norm_ratios(A, V)[0].tolist())
        rest = A[..., 1:, 1:]
        kept = rest.sum(-1, keepdim=True)
        alone = torch.eye(rest.shape[-1], dtype=rest.dtype, device=rest.device)  # attended to the first token only
        rest = torch.where(kept > 1e-6, rest / kept, alone)
        found["ratios without first"][-1].append(norm_ratios(rest, V[..., 1:, :])[0].tolist())
        streams = (x[:, 1:] for x in (view.entering, view.branch, view.value_only_branch))
        found["products"][-1].append(Products.of(*streams))

    for ids in texts:
        for values in found.values():
            values.append([])
        observe_layers(model, ids, visit)
    return found


def read(model: PreTrainedModel, documents: list[list[Window]]) -> dict[str, Any]:
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
        for document in documents:
            for name in squares:
                squares[name] = torch.zeros(len(layers) + 1, dtype=torch.float64)
            found["nll"].append(total_nll(model, make_batches(document)))
            for name, total in squares.items():
                found[name].append(total.sqrt().tolist())
    finally:
        for handle in handles:
            handle.remove()
    return found


def pooled_products(cells: Cells) -> dict[tuple[str, str], list[Products]]:
    """Products of every layer over all texts of a corpus, by model and corpus."""
    pooled = {}
    for (model, _, task), cell in cells.items():
        if "products" in cell["result"]:
            texts = [[Products(*layer) for layer in text] for text in cell["result"]["products"]]
            pooled[model, task] = [sum(layer[1:], layer[0]) for layer in zip(*texts, strict=True)]
    return pooled


def ratio_frame(cells: Cells) -> pd.DataFrame:
    """‖ÂV‖/‖V‖ of every head: model, corpus, tokens, document, layer, head, ratio."""
    return pd.DataFrame(
        (model, task, tokens, document, layer, head, ratio)
        for (model, _, task), cell in cells.items()
        if "ratios" in cell["result"]
        for tokens, name in (("all tokens", "ratios"), ("without first", "ratios without first"))
        for document, layers in enumerate(cell["result"][name])
        for layer, heads in enumerate(layers)
        for head, ratio in enumerate(heads)
    ).set_axis(["model", "corpus", "tokens", "document", "layer", "head", "ratio"], axis=1)


def branch_frame(cells: Cells) -> pd.DataFrame:
    """Each layer's branch with and without aggregation: model, corpus, document, layer, ratio, cosine, both alphas."""
    return pd.DataFrame(
        (model, task, document, layer, p.branch_ratio, p.branch_cosine, norm_matching_alpha(p), reconstructing_alpha(p))
        for (model, _, task), cell in cells.items()
        if "products" in cell["result"]
        for document, layers in enumerate(cell["result"]["products"])
        for layer, p in enumerate(Products(*numbers) for numbers in layers)
    ).set_axis(["model", "corpus", "document", "layer", "ratio", "cosine", "norm-matching", "reconstructing"], axis=1)


def stream_frame(cells: Cells) -> pd.DataFrame:
    """The residual stream: model, plan, tokens, document, depth, norm, and its ratio to the dense model's."""
    frame = pd.DataFrame(
        (model, plan, tokens, document, depth, norm)
        for (model, plan, task), cell in cells.items()
        if task == "reading"
        for tokens in ("all tokens", "without first")
        for document, norms in enumerate(cell["result"][tokens])
        for depth, norm in enumerate(norms)
    ).set_axis(["model", "plan", "tokens", "document", "depth", "norm"], axis=1)
    keys = ["model", "tokens", "document", "depth"]
    dense = frame[frame["plan"] == "dense"].rename(columns={"norm": "dense"})[[*keys, "dense"]]
    return frame.merge(dense, on=keys).assign(ratio=lambda rows: rows["norm"] / rows["dense"]).drop(columns="dense")


def plan_frame(cells: Cells) -> pd.DataFrame:
    """The alphas of every plan: model, plan, corpus they were found on, layer, alpha."""
    rows = []
    for (model, plan, task), cell in cells.items():
        if task == "reading":
            rows += [(model, plan, cell["result"]["corpus"], int(k), a) for k, a in cell["inputs"]["alphas"].items()]
    return pd.DataFrame(rows, columns=["model", "plan", "corpus", "layer", "alpha"])
