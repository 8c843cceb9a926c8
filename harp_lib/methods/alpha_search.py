"""Algorithm 1 of the paper: greedy top-down search of the rescaling alpha on perplexity."""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib import __version__
from harp_lib.pruning.architecture import check_plan, decoder_layers, few_tokens
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_value_only
from harp_lib.text.evaluating import evaluating
from harp_lib.text.head import agree_to_rounding, head_logits
from harp_lib.text.perplexity import (
    Batch,
    Tokens,
    head_nll,
    make_batches,
    perplexity_from_nll,
    total_nll,
)
from harp_lib.text.tokens import read_ids

ALPHA_GRID = tuple(i / 10 for i in range(11))

# Entries of a config that say where a model came from, not what it computes.
PROVENANCE_KEYS = {"_name_or_path", "transformers_version", "architectures"}


@dataclass(frozen=True)
class AlphaSearch:
    """Result of a search.

    Attributes
    ----------
    alphas : list of float
        The best alpha of each pruned layer, the top layer first, as the paper prints them.
    perplexities : dict
        ``perplexities[layer index][alpha]``, per predicted token.
    seconds : float
        Time spent computing, summed over all runs of an interrupted search.
    layer_passes : int
        Number of times that one decoder layer was run over the whole text.
    num_model_layers : int
        Number of decoder layers in the model.
    """

    alphas: list[float]
    perplexities: dict[int, dict[float, float]]
    seconds: float
    layer_passes: int
    num_model_layers: int

    @property
    def plan(self) -> PruningPlan:
        """HARP's plan with the best alphas."""
        return PruningPlan.value_only(self.num_model_layers, self.alphas)


def search_alphas(
    model: PreTrainedModel,
    tokens: Tokens,
    num_layers: int,
    grid: Sequence[float] = ALPHA_GRID,
    reuse_prefix: bool = True,
    resume: str | Path | None = None,
    cache_device: str | torch.device | None = None,
    progress: bool = True,
) -> AlphaSearch:
    """Search alpha for the top layers, one layer after the other from the top (Algorithm 1).

    Parameters
    ----------
    model : PreTrainedModel
        A dense model. It is unchanged afterwards, also after an error.
    tokens : Tensor or sequence
        The text on which perplexity is minimised, as in :func:`harp_lib.perplexity`.
    num_layers : int
        Number of layers to search, counted from the top.
    grid : sequence of float
        Candidate alphas, rising. If perplexities are equal, the smallest alpha wins.
    reuse_prefix : bool
        Compute the hidden states that enter the searched layers only once, because no alpha changes
        what lies below, and run each candidate from there. ``False`` runs the whole model for each
        candidate, which is what Algorithm 1 says. So does a family whose top layers need more than
        these states.
    resume : path, optional
        File to which each finished candidate is written. An interrupted search continues from it.
        Entries from a search with other weights, tokens, grid or options are ignored.
    cache_device : device, optional
        Where the reused hidden states are kept: ``num_layers`` arrays of tokens × d. The default is
        the model's device.
    progress : bool
        Show a progress bar with the best perplexity so far.

    Returns
    -------
    AlphaSearch
        The best alphas, the perplexity of every candidate, and the costs.

    Raises
    ------
    ValueError
        For an empty text, a bad grid, more layers than the model has, a pruned or unsupported
        model, or a perplexity that is not finite (the layer and alpha are named).
    """
    grid = [float(alpha) for alpha in grid]
    if not grid or not all(map(math.isfinite, grid)) or grid != sorted(set(grid)):
        raise ValueError(
            f"the alpha grid has to be finite numbers, one at least, rising, each once; got {grid}"
        )
    if num_layers < 1:
        raise ValueError(f"num_layers is {num_layers}; there has to be a layer, at least")
    num_model_layers = len(decoder_layers(model))
    check_plan(model, PruningPlan.value_only(num_model_layers, [1.0] * num_layers))
    batches = make_batches(model, tokens)
    num_predicted_tokens = sum(batch.num_scored for batch in batches)
    layers_top_down = list(reversed(range(num_model_layers)))[:num_layers]
    reuse_prefix = reuse_prefix and _top_stands_alone(model, layers_top_down)
    text = [(batch.ids.tolist(), batch.scored) for batch in batches]
    journal = Journal(resume, [__version__, model_digest(model), grid, reuse_prefix, text])

    begin = time.perf_counter()
    entering: dict[int, list[torch.Tensor]] = {}
    if reuse_prefix:
        entering = dense_hidden_states(model, batches, layers_top_down, cache_device)
    seconds = time.perf_counter() - begin

    def perplexity_with(candidate_alphas: dict[int, float]) -> float:
        layer = min(candidate_alphas)  # the searched one, as all others are above it
        alpha = candidate_alphas[layer]
        compute = partial(total_nll_with, model, batches, candidate_alphas, entering.get(layer))
        nll = journal.remember(layer, alpha, compute)
        perplexity = perplexity_from_nll(nll, num_predicted_tokens)
        if not math.isfinite(perplexity):
            raise ValueError(
                f"perplexity is {perplexity} with alpha = {alpha} in layer {layer}; "
                "try a wider dtype (float32 or bfloat16 instead of float16)"
            )
        return perplexity

    chosen_alphas, perplexities = greedy_search(perplexity_with, layers_top_down, grid, progress)
    for (layer, _), entry in journal.entries.items():
        if layer in layers_top_down:  # the file may be of a search of more layers
            seconds += entry["seconds"]
    literal_passes, reusing_passes = count_passes(num_model_layers, num_layers, len(grid))
    return AlphaSearch(
        alphas=list(chosen_alphas.values()),
        perplexities=perplexities,
        seconds=seconds,
        layer_passes=reusing_passes if reuse_prefix else literal_passes,
        num_model_layers=num_model_layers,
    )


def greedy_search(
    perplexity_with: Callable[[dict[int, float]], float],
    layers_top_down: Sequence[int],
    grid: Sequence[float],
    progress: bool,
) -> tuple[dict[int, float], dict[int, dict[float, float]]]:
    """Algorithm 1 of the paper: choose alpha layer by layer, and keep what is chosen.

    Parameters
    ----------
    perplexity_with : callable
        Perplexity of the model with some layers value-only, from alpha by layer index.
    layers_top_down : sequence of int
        Indices of the layers to search, the top layer first.
    grid : sequence of float
        Candidate alphas, rising. If perplexities are equal, the first alpha wins.
    progress : bool
        Show a progress bar with the best perplexity so far.

    Returns
    -------
    chosen_alphas : dict
        The best alpha of each layer.
    perplexities : dict
        ``perplexities[layer][alpha]`` of every candidate.
    """
    chosen_alphas: dict[int, float] = {}
    perplexities: dict[int, dict[float, float]] = {layer: {} for layer in layers_top_down}
    num_candidates = len(layers_top_down) * len(grid)
    with tqdm(
        total=num_candidates, desc="alpha search", unit="candidate", disable=not progress
    ) as bar:
        for layer in layers_top_down:
            for alpha in grid:
                candidate_alphas = chosen_alphas | {layer: alpha}
                perplexities[layer][alpha] = perplexity_with(candidate_alphas)
                lowest = min(perplexities[layer].values())
                bar.set_postfix_str(f"layer {layer}, best perplexity {lowest:.4g}", refresh=False)
                bar.update()
            chosen_alphas[layer] = min(grid, key=perplexities[layer].get)
    return chosen_alphas, perplexities


@torch.no_grad()
def dense_hidden_states(
    model: PreTrainedModel,
    batches: list[Batch],
    layers: list[int],
    device: str | torch.device | None,
) -> dict[int, list[torch.Tensor]]:
    """Hidden states (B, N, d) of each batch as they enter each of ``layers`` in the dense model."""
    entering: dict[int, list[torch.Tensor]] = {layer: [] for layer in layers}

    def keep(layer: int, module: torch.nn.Module, args: tuple) -> None:
        hidden = args[0]  # (B, N, d)
        entering[layer].append(hidden.to(device or hidden.device))

    with evaluating(model), ExitStack() as hooks:
        for layer in layers:
            module = decoder_layers(model)[layer]
            hooks.enter_context(module.register_forward_pre_hook(partial(keep, layer)))
        for batch in tqdm(batches, desc="hidden states", unit="batch", leave=False, delay=10):
            model.get_decoder()(input_ids=read_ids(model, batch), use_cache=False)
    return entering


@torch.no_grad()
def total_nll_with(
    model: PreTrainedModel,
    batches: list[Batch],
    alphas: dict[int, float],
    entering: list[torch.Tensor] | None,
) -> float:
    """Negative log-likelihood of the text in nats, with value-only layers at the top of the model.

    Parameters
    ----------
    model : PreTrainedModel
        A dense model.
    batches : list of Batch
        The text.
    alphas : dict
        Alpha of each value-only layer by layer index; these are the topmost layers.
    entering : list of Tensor, optional
        Hidden states (B, N, d) of each batch that enter the lowest of these layers. Without them
        the whole model is run.
    """
    with evaluating(model), temporarily_value_only(model, alphas):
        if entering is None:
            return total_nll(model, batches)
        nll = 0.0
        for batch, hidden in zip(batches, entering, strict=True):
            nll += head_nll(model, _decoder_output(model, min(alphas), hidden), batch)
        return nll


def _decoder_output(model: PreTrainedModel, lowest: int, hidden: torch.Tensor) -> torch.Tensor:
    """The decoder's output (B, N, d) from what enters ``lowest``, the lowest value-only layer."""
    top_layers = decoder_layers(model)[lowest:]
    hidden = hidden.to(next(top_layers.parameters()).device)
    for layer in top_layers:
        # Without attention a layer needs neither positions nor a mask.
        hidden = layer(hidden, position_embeddings=None)  # (B, N, d)
    return model.get_decoder().norm(hidden)


@torch.no_grad()
def _top_stands_alone(model: PreTrainedModel, layers: list[int]) -> bool:
    """Whether the hidden states that enter the value-only top ``layers`` give the model's logits.

    Some families hand their layers more than that, or do more after them. Three tokens are run
    both ways.
    """
    lowest = min(layers)
    text = Batch(few_tokens(model), scored=2)
    try:
        entering = dense_hidden_states(model, [text], layers, None)
        if any(len(states) > 1 for states in entering.values()):
            return False  # a layer that is at two places
        [hidden] = entering[lowest]  # (1, 3, d)
        with evaluating(model), temporarily_value_only(model, dict.fromkeys(layers, 1.0)):
            logits = head_logits(model, _decoder_output(model, lowest, hidden))
            expected = model(input_ids=text.ids, use_cache=False).logits
    except torch.OutOfMemoryError:
        raise
    except Exception:  # layers that want other arguments, or a norm of another name
        return False
    return agree_to_rounding(logits, expected)


def count_passes(num_model_layers: int, num_layers: int, candidates: int) -> tuple[int, int]:
    """Layer passes over the text that a search takes: literally, and with reused hidden states."""
    literal = num_layers * candidates * num_model_layers
    # The searched layer and all above it are run: 1 + 2 + … + num_layers.
    run_per_alpha = num_layers * (num_layers + 1) // 2
    reusing = num_model_layers + candidates * run_per_alpha
    return literal, reusing


def model_digest(model: PreTrainedModel) -> str:
    """Sixteen hexadecimal digits that stand for the model's config and all of its weights."""
    config = model.config.to_dict()
    architecture = {key: value for key, value in config.items() if key not in PROVENANCE_KEYS}
    digest = hashlib.sha256(json.dumps(architecture, sort_keys=True, default=str).encode())
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        for part in _plain_parts(weight):
            # Offloaded weights are on the meta device here and contribute their shape only.
            if not part.is_meta:
                integer = getattr(torch, f"int{8 * part.itemsize}")
                # Sums of each row's bits are fast, and they are exact on any device.
                row_sums = part.contiguous().view(integer).sum(dim=-1)
                digest.update(row_sums.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _plain_parts(weight: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that a weight consists of: itself, or integers and scales of a quantized one."""
    if not hasattr(weight, "__tensor_flatten__"):
        yield weight
        return
    names, _ = weight.__tensor_flatten__()
    for name in names:
        yield from _plain_parts(getattr(weight, name))


class Journal:
    """Negative log-likelihoods of a search's candidates, kept in a file if a path is given.

    The file holds one JSON object a line. Each names its search by a digest of ``inputs``, so a
    file may hold several searches.
    """

    def __init__(self, path: str | Path | None, inputs: list) -> None:
        self.path = Path(os.path.expanduser(path)) if path else None
        self.search = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]
        self.entries: dict[tuple[int, float], dict] = {}  # by layer and alpha
        if self.path and self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                # A run that was killed may leave an incomplete line.
                with suppress(json.JSONDecodeError):
                    entry = json.loads(line)
                    if entry.get("search") == self.search:
                        self.entries[entry["layer"], entry["alpha"]] = entry

    def remember(self, layer: int, alpha: float, compute: Callable[[], float]) -> float:
        """Negative log-likelihood of a candidate, computed unless the journal has it."""
        key = (layer, alpha)
        if key not in self.entries:
            begin = time.perf_counter()
            nll = compute()
            entry = {
                "search": self.search,
                "layer": layer,
                "alpha": alpha,
                "nll": nll,
                "seconds": time.perf_counter() - begin,
            }
            self.entries[key] = entry
            if self.path:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as file:
                    # The newline comes first: it ends a line that was left incomplete.
                    file.write("\n" + json.dumps(entry))
        return self.entries[key]["nll"]
