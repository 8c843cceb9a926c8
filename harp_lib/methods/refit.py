"""Beyond the paper: refit the values and output projections that HARP keeps, in closed form.

With X what enters the attention and Y what it puts out, this is the least squares solution of
X W ≈ Y, cut to the rank K·Dh that W_V W_O has. NBL (LIONS-EPFL, NeurIPS 2025) fits maps of full
rank to dense activations, not to the pruned stream.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.methods.calibration import LayerStream, plan_upwards
from harp_lib.names import REFIT
from harp_lib.pruning.architecture import check_plan, decoder_layers
from harp_lib.pruning.plan import LayerPlan, PruningPlan
from harp_lib.text.perplexity import Tokens

# The ridge penalty as a share of the features' mean square.
RIDGE = 1e-3


@dataclass(frozen=True)
class Refit:
    """Result of a refit.

    Attributes
    ----------
    plan : PruningPlan
        The layers, value-only with alpha = 1.
    weights : dict
        By layer ``v_proj.weight`` (K·Dh, d), ``o_proj.weight`` (d, K·Dh) and, where the model has
        it, ``v_proj.bias`` (K·Dh,). ``apply_plan(model, plan, weights=weights)`` takes them.
    explained : dict
        By layer, the share of the variance of attention's output that the fit explains on the
        calibration text.
    seconds : float
        Time spent.
    """

    plan: PruningPlan
    weights: dict[int, dict[str, torch.Tensor]]
    explained: dict[int, float]
    seconds: float


def refit_values(
    model: PreTrainedModel,
    tokens: Tokens | LayerStream,
    num_layers: int,
    layers: Iterable[int] | None = None,
) -> Refit:
    """Fit values and output projections of layers that lose queries and keys, from the lowest up.

    Parameters
    ----------
    model : PreTrainedModel
        A dense model. It is unchanged afterwards, also after an error.
    tokens : Tensor, sequence or LayerStream
        Calibration text, as in :func:`harp_lib.search_alphas`, or its hidden states at or below the
        layers, which are moved up. The states at one layer are held in memory.
    num_layers : int
        Number of layers to refit, counted from the top.
    layers : iterable of int, optional
        Indices of ``num_layers`` layers to refit instead of the top ones.

    Returns
    -------
    Refit
        The plan, the fitted weights, and how well they fit.

    Raises
    ------
    ValueError
        For layers that the model does not have, an empty text, or a pruned or unsupported model.
    """
    begin = time.perf_counter()
    num_model_layers = len(decoder_layers(model))
    if layers is None:
        layers = range(num_model_layers - num_layers, num_model_layers)
    chosen = sorted(set(layers))
    if not chosen or len(chosen) != num_layers:
        raise ValueError(f"{num_layers} layers were asked for, {chosen} given")
    value_only = PruningPlan.value_only(num_model_layers, dict.fromkeys(chosen, 1.0))
    check_plan(model, value_only, fold_output=True)

    stream = tokens
    if not isinstance(tokens, LayerStream):
        stream = LayerStream(model, tokens)
    weights: dict[int, dict[str, torch.Tensor]] = {}
    explained = {}

    def decide(layer: int) -> LayerPlan:
        weights[layer], explained[layer] = _fitted(stream, layer)
        return LayerPlan(alpha=1.0)

    plan = replace(plan_upwards(model, chosen, decide, weights), method=REFIT)
    return Refit(plan, weights, explained, time.perf_counter() - begin)


def explained_by_layer(model: PreTrainedModel, tokens: Tokens) -> list[float]:
    """Share of the variance of each layer's attention that a refit explains in the dense model.

    Layers are listed bottom to top. NBL ranks layers by such a measure.
    """
    stream = LayerStream(model, tokens)
    shares = []
    for layer in tqdm(range(len(stream.layers)), "explained", unit="layer", leave=False):
        _, explained = _fitted(stream, layer)
        shares.append(explained)
    return shares


@torch.no_grad()
def _fitted(stream: LayerStream, layer: int) -> tuple[dict[str, torch.Tensor], float]:
    """Weights of a layer's attention (:meth:`Moments.solve`), and the share that they explain."""
    attention = stream.layers[layer].self_attn
    bias = attention.o_proj.bias
    moments = Moments()
    for entering, attended in stream.passing(layer, attention):
        if bias is not None:
            attended = attended - bias  # the bias stays in the model
        moments.add(entering, attended)
    return moments.solve(attention.v_proj)


def with_one(x: torch.Tensor) -> torch.Tensor:
    """Features (B, N, d + 1) of tokens (B, N, d): the token, and a one for the bias."""
    return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)


class Moments:
    """Sums over tokens from which a linear map from features X to outputs Y is fitted, float64.

    Parameters
    ----------
    features : callable
        Makes features (B, N, features) of hidden states (B, N, d). The last feature is a one.
    """

    def __init__(self, features: Callable[[torch.Tensor], torch.Tensor] = with_one) -> None:
        self.features = features
        self.num_tokens = 0
        self.xx = 0.0  # XᵀX
        self.xy = 0.0  # XᵀY
        self.y = 0.0  # sum of Y's rows
        self.yy = 0.0  # sum of Y's squares

    @torch.no_grad()
    def add(self, entering: torch.Tensor, leaving: torch.Tensor) -> None:
        """Add tokens, (B, N, d) each."""
        x = self.features(entering).flatten(0, 1).double()  # (T, features)
        y = leaving.flatten(0, 1).double()  # (T, d)
        self.num_tokens += len(x)
        self.xx += x.T @ x  # (features, features)
        self.xy += x.T @ y  # (features, d)
        self.y += y.sum(0)  # (d,)
        self.yy += y.square().sum()  # ()

    def least_squares(self, num_features: int | None = None) -> torch.Tensor:
        """The best map (features, d) from the first ``num_features`` features, by default all."""
        xx = self.xx[:num_features, :num_features]
        xy = self.xy[:num_features]
        ridge = RIDGE * xx.diagonal().mean() * torch.eye(len(xx), dtype=xx.dtype, device=xx.device)
        return torch.linalg.solve(xx + ridge, xy)

    def solve(self, values: torch.nn.Linear) -> tuple[dict[str, torch.Tensor], float]:
        """Weights of the best map of the rank of ``values``, and the share of variance it explains.

        The weights are ``v_proj.weight``, ``o_proj.weight`` and, if ``values`` has a bias,
        ``v_proj.bias``, in the dtype of ``values``.
        """
        has_bias = values.bias is not None
        num_features = len(self.xx) if has_bias else len(self.xx) - 1  # the last one is the bias
        xx = self.xx[:num_features, :num_features]
        xy = self.xy[:num_features]
        full_rank = self.least_squares(num_features)  # (features, d)
        # Eigenvectors of the fitted outputs' second moments; the leading ones are last.
        _, directions = torch.linalg.eigh(full_rank.T @ xx @ full_rank)
        spare = max(0, values.out_features - len(directions))  # values may be wider than the stream
        up = F.pad(directions, (spare, 0))[:, -values.out_features :]  # (d, K·Dh)
        down = full_rank @ up  # (features, K·Dh)
        weights = {"v_proj.weight": down[: values.in_features].T, "o_proj.weight": up}
        if has_bias:
            weights["v_proj.bias"] = down[-1]
        dtype = values.weight.dtype
        weights = {name: weight.to(dtype).contiguous() for name, weight in weights.items()}

        fitted = down @ up.T  # (features, d)
        missed = self.yy - 2 * (fitted * xy).sum() + (fitted * (xx @ fitted)).sum()
        variance = self.yy - self.y.square().sum() / self.num_tokens
        return weights, float(1 - missed / variance)
