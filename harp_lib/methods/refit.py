"""Beyond the paper: the values and output projections that HARP keeps, refitted in closed form.

With X what enters the attention and Y what it puts out: the least squares solution of X W ≈ Y, cut
to the rank K·Dh that W_V W_O has. NBL (LIONS-EPFL, NeurIPS 2025) fits maps of full rank to dense
activations, not to the pruned stream.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.methods.calibration import LayerStream
from harp_lib.pruning.architecture import check_plan, decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.text.perplexity import Tokens

RIDGE = 1e-3  # of the mean square of what enters


@dataclass(frozen=True)
class Refit:
    """What was fitted.

    Attributes
    ----------
    plan : PruningPlan
        The layers, value-only with alpha = 1.
    weights : dict
        By layer ``v_proj.weight`` (K·Dh, d), ``o_proj.weight`` (d, K·Dh) and, where the model has
        it, ``v_proj.bias`` (K·Dh,): what ``apply_plan(model, plan, weights=weights)`` puts in.
    explained : dict
        By layer the share of the variance of attention's output that is explained, on the
        calibration text.
    seconds : float
        Time spent.
    """

    plan: PruningPlan
    weights: dict[int, dict[str, torch.Tensor]]
    explained: dict[int, float]
    seconds: float


def refit_values(
    model: PreTrainedModel, tokens: Tokens, num_layers: int, layers: Iterable[int] | None = None
) -> Refit:
    """Fit values and output projections of layers that lose queries and keys, from the lowest up.

    Parameters
    ----------
    model : PreTrainedModel
        A dense model. It is as before afterwards, also after an error.
    tokens : Tensor or sequence
        Calibration text, as in :func:`harp_lib.search_alphas`. Its hidden states at one layer are
        held in memory.
    num_layers : int
        How many layers, counted from the top.
    layers : iterable of int, optional
        Indices of these layers, in place of the top ones.

    Raises
    ------
    ValueError
        For layers that the model has not, or a pruned or unsupported model.
    """
    begin, total = time.perf_counter(), len(decoder_layers(model))
    chosen = sorted(range(total - num_layers, total) if layers is None else set(layers))
    if len(chosen) != num_layers or not chosen or not 0 <= chosen[0] <= chosen[-1] < total:
        raise ValueError(
            f"{num_layers} layers were asked for, {chosen} given; the model has 0 … {total - 1}"
        )
    plan = replace(PruningPlan.value_only(total, dict.fromkeys(chosen, 1.0)), method="harp+refit")
    check_plan(model, plan, fold_output=True)
    stream, weights, explained = LayerStream(model, tokens), {}, {}
    with ExitStack() as pruned_so_far:
        for layer in tqdm(chosen, desc="refit", unit="layer", leave=False, delay=10):
            weights[layer], explained[layer] = _fit(stream, layer)
            one = PruningPlan.value_only(total, {layer: 1.0})
            pruned_so_far.enter_context(
                temporarily_pruned(model, one, weights={layer: weights[layer]})
            )
    return Refit(plan, weights, explained, time.perf_counter() - begin)


def explained_by_layer(model: PreTrainedModel, tokens: Tokens) -> list[float]:
    """Share of the variance of each layer's attention that its fit explains, in a dense model: NBL
    ranks layers so.
    """
    stream = LayerStream(model, tokens)
    layers = tqdm(range(len(stream.layers)), "explained", unit="layer", leave=False)
    return [_fit(stream, layer, go_on=True)[1] for layer in layers]


def _fit(
    stream: LayerStream, layer: int, go_on: bool = False
) -> tuple[dict[str, torch.Tensor], float]:
    """Weights and explained variance of a layer; ``go_on`` leaves the stream above it, as it is
    without them.
    """
    attention, moments, entering = stream.layers[layer].self_attn, Moments(), stream.entering(layer)
    with attention.register_forward_hook(moments.take, with_kwargs=True):
        deque(stream.entering(layer + 1) if go_on else stream.leaving(layer, entering), maxlen=0)
    return moments.solve(attention.v_proj)


def with_one(x: torch.Tensor) -> torch.Tensor:
    """Features of each token, (B, N, d + 1): what enters, and a one for the bias."""
    return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)


class Moments:
    """Sums over tokens of XᵀX, XᵀY, y and ‖y‖², float64; ``read`` makes features X, the last a one,
    of what enters.
    """

    def __init__(self, read: Callable[[torch.Tensor], torch.Tensor] = with_one) -> None:
        self.read, self.count, self.xx, self.xy, self.y, self.yy = read, 0, 0.0, 0.0, 0.0, 0.0

    def take(self, attention: torch.nn.Module, args: tuple, kwargs: dict, output: tuple) -> None:
        """Take in what an attention was given and put out, (B, N, d) each; a forward hook."""
        bias = attention.o_proj.bias  # it stays
        self.add(
            args[0] if args else kwargs["hidden_states"],
            output[0] if bias is None else output[0] - bias,
        )

    @torch.no_grad()
    def add(self, entering: torch.Tensor, leaving: torch.Tensor) -> None:
        """Take in tokens, (B, N, d) each."""
        x, y = (
            self.read(entering).flatten(0, 1).double(),
            leaving.flatten(0, 1).double(),
        )  # (T, features), (T, d)
        self.count, self.xx, self.xy = self.count + len(x), self.xx + x.T @ x, self.xy + x.T @ y
        self.y, self.yy = self.y + y.sum(0), self.yy + y.square().sum()

    def least_squares(self, features: int | None = None) -> torch.Tensor:
        """The best map (features, d) of the first features, by default of all."""
        xx = self.xx[:features, :features]
        ridge = RIDGE * xx.diagonal().mean() * torch.eye(len(xx), dtype=xx.dtype, device=xx.device)
        return torch.linalg.solve(xx + ridge, self.xy[:features])

    def solve(self, values: torch.nn.Linear) -> tuple[dict[str, torch.Tensor], float]:
        """Weights of the best map of the rank of ``values``, and the share of variance that it
        explains.
        """
        used = len(self.xx) if values.bias is not None else len(self.xx) - 1
        xx, xy, whole = (
            self.xx[:used, :used],
            self.xy[:used],
            self.least_squares(used),
        )  # whole: (d, d)
        _, directions = torch.linalg.eigh(whole.T @ xx @ whole)  # of X W, the leading ones last
        leading = directions[:, -values.out_features :]  # (d, K·Dh)
        down = whole @ leading  # (d, K·Dh)
        found = {"v_proj.weight": down[: values.in_features].T, "o_proj.weight": leading}
        if values.bias is not None:
            found["v_proj.bias"] = down[-1]
        fitted = down @ leading.T
        missed = self.yy - 2 * (fitted * xy).sum() + (fitted * (xx @ fitted)).sum()
        explained = 1 - missed / (self.yy - self.y.square().sum() / self.count)
        return {
            name: weight.to(values.weight.dtype).contiguous() for name, weight in found.items()
        }, float(explained)
