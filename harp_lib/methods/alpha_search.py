"""Algorithm 1 of the paper: greedy top-down search of the rescaling alpha on perplexity."""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib import __version__
from harp_lib.measure.models import evaluating
from harp_lib.measure.text import (
    Batch,
    Tokens,
    head_nll,
    make_batches,
    perplexity_from_nll,
    total_nll,
)
from harp_lib.pruning.architecture import check_plan, decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_value_only

ALPHA_GRID = tuple(i / 10 for i in range(11))
VOLATILE = {"_name_or_path", "transformers_version", "architectures"}  # of a config: where it came from, not what it is


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

    @property
    def best(self) -> list[float]:
        """Perplexity after each searched layer, the top layer first."""
        return [min(curve.values()) for _, curve in sorted(self.perplexities.items(), reverse=True)]


def search_alphas(
    model: PreTrainedModel,
    tokens: Tokens,
    num_layers: int,
    grid: Sequence[float] = ALPHA_GRID,
    reuse_prefix: bool = True,
    resume: str | Path | None = None,
    lower: str = "dense",
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
        Compute the hidden states below the searched layers once, since no alpha changes them, and run each
        candidate from there. ``False`` runs the whole model for each candidate, which is what Algorithm 1 says.
    resume : path, optional
        File that takes each finished candidate. A search that was interrupted continues from it.
    lower : {"dense", "pruned"}
        What layers that are still to be searched are: unpruned, or value-only with alpha = 1. The paper's text says
        the first, the initial vector of Algorithm 1 may be read as the second.
    cache_device : device, optional
        Where the reused hidden states live, ``num_layers`` arrays of tokens × d; default: the model's device.
    progress : bool
        Show a progress bar with the best perplexity so far.

    Returns
    -------
    AlphaSearch

    Raises
    ------
    ValueError
        For an empty text, a bad grid, more layers than the model has, a pruned or unsupported model, a ``resume``
        file of another search, or a perplexity that is not finite (the layer and alpha are named).
    """
    grid, total = [float(alpha) for alpha in grid], len(decoder_layers(model))
    if not grid or not all(map(math.isfinite, grid)) or grid != sorted(set(grid)):
        raise ValueError(f"the alpha grid has to be finite numbers, one at least, rising, each once; got {grid}")
    if lower not in ("dense", "pruned"):
        raise ValueError(f"unknown lower {lower!r}; choose from dense, pruned")
    if not 1 <= num_layers <= total:
        raise ValueError(
            f"num_layers is {num_layers}; {type(model).__name__} has {total} layers, 1 … {total} can be searched"
        )
    check_plan(model, PruningPlan.value_only(total, [1.0] * num_layers))
    batches, searched = make_batches(tokens), list(range(total - 1, total - 1 - num_layers, -1))
    scored = sum(batch.num_scored for batch in batches)
    options = {"layers": searched, "grid": grid, "lower": lower, "reuse_prefix": reuse_prefix}
    options["scored"] = [batch.scored for batch in batches]
    journal = Journal(resume, _fingerprint(model, [batch.ids for batch in batches], options))

    best = dict.fromkeys(searched, 1.0) if lower == "pruned" else {}
    begin = time.perf_counter()
    prefix = ReusedPrefix(model, batches, searched, best, cache_device, progress) if reuse_prefix else None
    seconds, passes = time.perf_counter() - begin, total if prefix else 0
    curves: dict[int, dict[float, float]] = {}
    name = "alpha search" if reuse_prefix else "alpha search, literal"
    with tqdm(total=num_layers * len(grid), desc=name, unit="candidate", disable=not progress) as bar:
        for layer in searched:
            curve = curves[layer] = {}
            for alpha in grid:
                evaluate = partial(_nll, model, batches, prefix, layer, best | {layer: alpha})
                curve[alpha] = perplexity_from_nll(journal.remember(layer, alpha, evaluate), scored)
                if not math.isfinite(curve[alpha]):
                    raise ValueError(
                        f"perplexity is {curve[alpha]} with alpha = {alpha} in layer {layer}; "
                        "try a wider dtype (float32 or bfloat16 instead of float16)"
                    )
                bar.update()
                bar.set_postfix_str(f"layer {layer}, best perplexity {min(curve.values()):.4g}", refresh=False)
            best[layer] = min(curve, key=curve.get)
            passes += len(grid) * (total - layer if prefix else total)
            if prefix:
                del prefix.hidden[layer]
    return AlphaSearch([best[layer] for layer in searched], curves, seconds + journal.seconds, passes, total)


def _nll(
    model: PreTrainedModel, batches: list[Batch], prefix: "ReusedPrefix | None", layer: int, alphas: dict[int, float]
) -> float:
    """Negative log-likelihood of a candidate: of the whole model, as Algorithm 1 says, or from the reused prefix up."""
    if prefix:
        return prefix.nll(layer, alphas)
    with temporarily_value_only(model, alphas):
        return total_nll(model, batches)


class ReusedPrefix:
    """Evaluates candidates from the hidden states that enter their layer, computed once, with alphas ``lower``.

    Everything above is value-only, so the layers need neither positions nor masks and can be called one by one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        batches: list[Batch],
        searched: list[int],
        lower: dict[int, float],
        cache_device: str | torch.device | None = None,
        progress: bool = True,
    ) -> None:
        self.model, self.batches, self.layers = model, batches, decoder_layers(model)
        self.hidden: dict[int, list[torch.Tensor]] = {layer: [] for layer in searched}  # each (B, N, d)

        def record(layer: int):
            return lambda module, args: self.hidden[layer].append(args[0].to(cache_device or args[0].device))

        handles = [self.layers[layer].register_forward_pre_hook(record(layer)) for layer in searched]
        try:
            with torch.no_grad(), evaluating(model), temporarily_value_only(model, lower):
                quiet = not progress or len(batches) < 8
                for batch in tqdm(batches, desc="hidden states", unit="batch", leave=False, disable=quiet):
                    model.get_decoder()(input_ids=batch.ids.to(model.device), use_cache=False)
        finally:
            for handle in handles:
                handle.remove()

    @torch.no_grad()
    def nll(self, layer: int, alphas: dict[int, float]) -> float:
        """Negative log-likelihood of the text, in nats, with all layers from ``layer`` up value-only."""
        model, above, total = self.model, self.layers[layer:], 0.0
        alphas = {index: alpha for index, alpha in alphas.items() if index >= layer}
        with evaluating(model), temporarily_value_only(model, alphas):
            for batch, hidden in zip(self.batches, self.hidden[layer], strict=True):
                hidden = hidden.to(next(above[0].parameters()).device)
                for module in above:
                    hidden = module(hidden, position_embeddings=None)
                total += head_nll(model, model.get_decoder().norm(hidden), batch)
        return total


def count_passes(num_model_layers: int, num_layers: int, candidates: int) -> tuple[int, int]:
    """Layer passes over the text that a search takes: literal, and with reused hidden states."""
    above = num_layers * (num_layers + 1) // 2  # 1 + 2 + … layers from the searched one to the top
    return num_layers * candidates * num_model_layers, num_model_layers + candidates * above


def model_digest(model: PreTrainedModel) -> str:
    """Sixteen hexadecimal digits that stand for the model's config and all of its weights.

    The bits of each row are summed as integers: exact, on any device, and quick.
    """
    config = {key: value for key, value in model.config.to_dict().items() if key not in VOLATILE}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        if not weight.is_meta:  # offloaded weights are elsewhere; the others have to do
            bits = weight.contiguous().view(integers[weight.itemsize])
            digest.update(bits.sum(dim=-1).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _fingerprint(model: PreTrainedModel, tokens: Sequence[torch.Tensor], options: dict[str, Any]) -> str:
    """Digest of everything that a candidate's likelihood depends on."""
    digest = hashlib.sha256(json.dumps([__version__, model_digest(model), options], sort_keys=True).encode())
    for ids in tokens:
        digest.update(ids.cpu().numpy().tobytes() + str(tuple(ids.shape)).encode())
    return digest.hexdigest()[:16]


class Journal:
    """Remembers the likelihood of each candidate, on disk if a path is given.

    The file has one JSON object a line: first the fingerprint of the search, then the candidates. A last line that
    was cut off by a kill is dropped.
    """

    def __init__(self, path: str | Path | None, fingerprint: str) -> None:
        self.path, self.seconds = Path(path) if path else None, 0.0
        self.known: dict[tuple[int, float], float] = {}
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        try:
            if not b'{"search": "'.startswith(content[:12]):
                raise ValueError("somebody's file")
            header, *entries = map(json.loads, whole.splitlines() or ['{"search": null}'])
            found = header["search"]
            self.known = {(entry["layer"], entry["alpha"]): entry["nll"] for entry in entries}
            self.seconds = sum(entry["seconds"] for entry in entries)
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{self.path} is not the journal of an alpha search; give another file") from None
        if whole and found != fingerprint:
            raise ValueError(
                f"{self.path} belongs to another search (other weights, tokens, grid or options); "
                "delete it or give another file"
            )
        if whole != content:
            os.truncate(self.path, len(whole))
        if not whole:
            self._append({"search": fingerprint})

    def remember(self, layer: int, alpha: float, compute: Callable[[], float]) -> float:
        """The candidate's likelihood, computed unless the file has it."""
        if (layer, alpha) not in self.known:
            begin = time.perf_counter()
            nll = self.known[layer, alpha] = compute()
            seconds = time.perf_counter() - begin
            self.seconds += seconds
            self._append({"layer": layer, "alpha": alpha, "nll": nll, "seconds": seconds})
        return self.known[layer, alpha]

    def _append(self, entry: dict[str, Any]) -> None:
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
