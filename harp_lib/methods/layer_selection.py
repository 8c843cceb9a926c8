"""Which layers to prune: the ablation of the paper's Section "Exploring Layer Selection"."""

from collections.abc import Sequence

from tqdm import tqdm
from transformers import PreTrainedModel

from harp_lib.evaluation.probe import LayerView, observe_layers
from harp_lib.methods.llm_pruner import weight_gradients
from harp_lib.pruning.architecture import check_plan, decoder_layers
from harp_lib.pruning.plan import PruningPlan
from harp_lib.text.perplexity import Tokens, make_batches
from harp_lib.theory import block_influence

# The paper's other strategies need no scores: they take the highest or the lowest layers.
SCORED = ("hessian", "similarity")


def lowest_layers(scores: Sequence[float], count: int) -> list[int]:
    """The ``count`` layers with the lowest scores, rising; of equal scores the higher layer."""
    from_lowest_score = sorted(range(len(scores)), key=lambda layer: (scores[layer], -layer))
    return sorted(from_lowest_score[:count])


def layer_scores(strategy: str, model: PreTrainedModel, calibration: Tokens) -> list[float]:
    r"""Importance of each layer, bottom to top (appendix "Layer Selection with Heuristic Metric").

    ``hessian`` is of first order despite its name: it is the squared effect of a matrix' scale on
    the mean loss L. It takes the memory of :func:`.weight_gradients`. ``similarity`` takes the mean
    **E** over all tokens of the text, and the attention branch as it is added to the stream X
    (after the norm that some families have there):

    .. math:: I(l) = \sum_{s \in \{q, k, v\}} \Bigl( \sum_{ij} \frac{\partial L}{\partial W^s_{ij}}
    W^s_{ij} \Bigr)^2,
              \qquad S(l) = 1 - \mathbf{E} \cos\bigl(X, X +
              \mathrm{Attention}(\mathrm{LayerNorm}(X))\bigr)

    A low score means that the layer is unimportant. A ValueError is raised for an unknown strategy,
    an empty text, and a pruned or unsupported model.
    """
    if strategy not in SCORED:
        raise ValueError(f"no scores for {strategy!r}; choose from {', '.join(SCORED)}")
    num_layers = len(decoder_layers(model))
    check_plan(model, PruningPlan.value_only(num_layers, [1.0] * num_layers))
    if strategy == "hessian":
        return _hessian_scores(model, calibration, num_layers)
    return _similarity_scores(model, calibration, num_layers)


def _hessian_scores(model: PreTrainedModel, calibration: Tokens, num_layers: int) -> list[float]:
    parts = ("q_proj", "k_proj", "v_proj")
    gradients = weight_gradients(model, calibration, range(num_layers), parts)
    scores = []
    for pairs in gradients.values():
        score = 0.0
        for weight, gradient in pairs:
            score += (weight.float() * gradient).sum().item() ** 2
        scores.append(score)
    return scores


def _similarity_scores(model: PreTrainedModel, calibration: Tokens, num_layers: int) -> list[float]:
    batches = make_batches(model, calibration)
    influences = [0.0] * num_layers  # summed over tokens

    def visit(view: LayerView) -> None:
        before = view.entering.float()  # (B, N, d)
        after = before + view.branch.float()
        num_tokens = before.shape[:-1].numel()
        influences[view.layer] += num_tokens * block_influence(before, after)

    for batch in tqdm(batches, desc="similarity", unit="batch", delay=5, leave=False):
        observe_layers(model, batch.ids, visit)
    total_tokens = sum(batch.ids.numel() for batch in batches)
    return [influence / total_tokens for influence in influences]
