"""Algorithm 1 of the paper: greedy top-down search of the rescaling alpha on perplexity."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib import __version__
from harp_lib.models.load import evaluating
from harp_lib.pruning.architecture import check_plan, decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_value_only
from harp_lib.text.perplexity import (
    Batch,
    Tokens,
    head_nll,
    make_batches,
    perplexity_from_nll,
    total_nll,
)

ALPHA_GRID = tuple(i / 10 for i in range(11))
VOLATILE = {
    "_name_or_path",
    "transformers_version",
    "architectures",
}  # of a config: where it came from, not what it is


@dataclass(frozen=True)
class AlphaSearch:
    """What a search found.

    Attributes
    ----------
    alphas : list of float
        The best alpha of each pruned layer, the top layer first, as the paper prints them.
    perplexities : dict
        ``perplexities[layer index][alpha]``, per predicted token.
    seconds : float
        Time spent, in all sittings of an interrupted search.
    layer_passes : int
        How often one decoder layer was run over the whole text.
    num_model_layers : int
        Decoder layers of the model.
    """

    alphas: list[float]
    perplexities: dict[int, dict[float, float]]
    seconds: float
    layer_passes: int
    num_model_layers: int

    @property
    def plan(self) -> PruningPlan:
        """HARP's plan with the alphas that were found."""
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
    """Search alpha for the top layers, one after the other, from the top (paper, Algorithm 1).

    Parameters
    ----------
    model : PreTrainedModel
        A dense model. It is as before afterwards, also after an error.
    tokens : Tensor or sequence
        The text to minimise perplexity on, as in :func:`harp_lib.perplexity`.
    num_layers : int
        How many layers to search, counted from the top.
    grid : sequence of float
        Candidate alphas, rising. Of equal perplexities the smallest alpha wins.
    reuse_prefix : bool
        Compute the hidden states below the searched layers once, since no alpha changes them, and
        run each candidate from there. ``False`` runs the whole model for each candidate, which is
        what Algorithm 1 says.
    resume : path, optional
        File that takes each finished candidate. A search that was interrupted continues from it;
        what the file holds of other weights, tokens, grids or options is not looked at.
    cache_device : device, optional
        Where the reused hidden states live, ``num_layers`` arrays of tokens × d; default: the
        model's device.
    progress : bool
        Show a progress bar with the best perplexity so far.

    Raises
    ------
    ValueError
        For an empty text, a bad grid, more layers than the model has, a pruned or unsupported
        model, or a perplexity that is not finite (the layer and alpha are named).
    """
    grid, total = [float(alpha) for alpha in grid], len(decoder_layers(model))
    if not grid or not all(map(math.isfinite, grid)) or grid != sorted(set(grid)):
        raise ValueError(
            f"the alpha grid has to be finite numbers, one at least, rising, each once; got {grid}"
        )
    check_plan(model, PruningPlan.value_only(total, [1.0] * num_layers))
    batches, searched = make_batches(tokens), list(range(total - 1, total - 1 - num_layers, -1))
    scored = sum(batch.num_scored for batch in batches)
    read = [(batch.ids.tolist(), batch.scored) for batch in batches]
    journal = Journal(resume, [__version__, model_digest(model), grid, reuse_prefix, read])

    begin = time.perf_counter()
    entering = _entering(model, batches, searched, cache_device) if reuse_prefix else {}
    seconds = time.perf_counter() - begin
    best, curves = (
        {},
        {layer: {} for layer in searched},
    )  # alpha by layer; perplexity by layer and alpha
    candidates = [(layer, alpha) for layer in searched for alpha in grid]
    bar = tqdm(candidates, desc="alpha search", unit="candidate", disable=not progress)
    for layer, alpha in bar:
        curve, evaluate = (
            curves[layer],
            partial(_nll, model, batches, best | {layer: alpha}, entering.get(layer)),
        )
        curve[alpha] = perplexity_from_nll(journal.remember(layer, alpha, evaluate), scored)
        if not math.isfinite(curve[alpha]):
            wanted = "try a wider dtype (float32 or bfloat16 instead of float16)"
            raise ValueError(
                f"perplexity is {curve[alpha]} with alpha = {alpha} in layer {layer}; {wanted}"
            )
        best[layer] = min(curve, key=curve.get)
        bar.set_postfix_str(
            f"layer {layer}, best perplexity {curve[best[layer]]:.4g}", refresh=False
        )
    passes = count_passes(total, num_layers, len(grid))[reuse_prefix]
    seconds += sum(entry["seconds"] for entry in journal.entries.values())
    return AlphaSearch(list(best.values()), curves, seconds, passes, total)


@torch.no_grad()
def _entering(
    model: PreTrainedModel,
    batches: list[Batch],
    layers: list[int],
    device: str | torch.device | None,
) -> dict[int, list[torch.Tensor]]:
    """Hidden states (B, N, d) of each batch as they enter some layers of the dense model."""
    found: dict[int, list[torch.Tensor]] = {layer: [] for layer in layers}

    def keep(layer: int, _: torch.nn.Module, args: tuple) -> None:
        found[layer].append(args[0].to(device or args[0].device))

    with evaluating(model), ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(
                decoder_layers(model)[layer].register_forward_pre_hook(partial(keep, layer))
            )
        for batch in tqdm(batches, desc="hidden states", unit="batch", leave=False, delay=10):
            model.get_decoder()(input_ids=batch.ids.to(model.device), use_cache=False)
    return found


@torch.no_grad()
def _nll(
    model: PreTrainedModel,
    batches: list[Batch],
    alphas: dict[int, float],
    entering: list[torch.Tensor] | None,
) -> float:
    """Negative log-likelihood in nats with the top layers value-only, from what enters the lowest
    of them if given.
    """
    with evaluating(model), temporarily_value_only(model, alphas):
        if entering is None:
            return total_nll(model, batches)
        above, total = decoder_layers(model)[min(alphas) :], 0.0
        for batch, hidden in zip(batches, entering, strict=True):
            hidden = hidden.to(next(above.parameters()).device)
            for layer in above:  # without attention they need neither positions nor masks
                hidden = layer(hidden, position_embeddings=None)
            total += head_nll(model, model.get_decoder().norm(hidden), batch)
        return total


def count_passes(num_model_layers: int, num_layers: int, candidates: int) -> tuple[int, int]:
    """Layer passes over the text that a search takes: literal, and with reused hidden states."""
    above = num_layers * (num_layers + 1) // 2  # 1 + 2 + … layers from the searched one to the top
    return num_layers * candidates * num_model_layers, num_model_layers + candidates * above


def model_digest(model: PreTrainedModel) -> str:
    """Sixteen hexadecimal digits that stand for the model's config and all of its weights."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in VOLATILE}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        if not weight.is_meta:  # offloaded weights are elsewhere; the others have to do
            bits = weight.contiguous().view(getattr(torch, f"int{8 * weight.itemsize}"))
            digest.update(
                bits.sum(dim=-1).cpu().numpy().tobytes()
            )  # of each row: exact on any device, and quick
    return digest.hexdigest()[:16]


class Journal:
    """The likelihood of each candidate of a search, also on disk if a path is given: one JSON
    object a line.
    """

    def __init__(self, path: str | Path | None, inputs: list) -> None:
        self.path, self.search = (
            path and Path(path),
            hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16],
        )
        self.entries: dict[tuple[int, float], dict] = {}
        for line in (
            self.path.read_text(encoding="utf-8").splitlines()
            if path and self.path.exists()
            else []
        ):
            with suppress(json.JSONDecodeError):  # a line that a kill cut off
                entry = json.loads(line)
                if entry.get("search") == self.search:
                    self.entries[entry["layer"], entry["alpha"]] = entry

    def remember(self, layer: int, alpha: float, compute: Callable[[], float]) -> float:
        """The candidate's likelihood, computed unless the file has it."""
        if (layer, alpha) not in self.entries:
            begin = time.perf_counter()
            entry = {"search": self.search, "layer": layer, "alpha": alpha, "nll": compute()}
            self.entries[layer, alpha] = entry | {"seconds": time.perf_counter() - begin}
            if self.path:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open(
                    "a", encoding="utf-8"
                ) as file:  # the newline first: what a kill cut off ends there
                    file.write("\n" + json.dumps(self.entries[layer, alpha]))
        return self.entries[layer, alpha]["nll"]
