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

SCORED = (
    "hessian",
    "similarity",
)  # the paper's other strategies take the highest or the lowest layers


def lowest_layers(scores: Sequence[float], count: int) -> list[int]:
    """The ``count`` layers with the lowest scores, from the bottom; of equal scores the higher
    layer is taken.
    """
    return sorted(sorted(range(len(scores)), key=lambda layer: (scores[layer], -layer))[:count])


def layer_scores(strategy: str, model: PreTrainedModel, calibration: Tokens) -> list[float]:
    r"""Importance of each layer, low is unimportant (paper, appendix "Layer Selection with
    Heuristic Metric").

    ``hessian``, of first order despite its name, is the squared effect of a matrix' scale on the
    mean loss L, in the memory that :func:`.weight_gradients` takes; ``similarity`` takes the mean
    **E** over all tokens that are read, and the attention branch as it is added to the stream X
    (after the norm that some families have there):

    .. math:: I(l) = \sum_{s \in \{q, k, v\}} \Bigl( \sum_{ij} \frac{\partial L}{\partial W^s_{ij}}
    W^s_{ij} \Bigr)^2,
              \qquad S(l) = 1 - \mathbf{E} \cos\bigl(X, X +
              \mathrm{Attention}(\mathrm{LayerNorm}(X))\bigr)
    """
    if strategy not in SCORED:
        raise ValueError(f"no scores for {strategy!r}; choose from {', '.join(SCORED)}")
    total = len(decoder_layers(model))
    check_plan(model, PruningPlan.value_only(total, [1.0] * total))
    if strategy == "hessian":
        of_layers = weight_gradients(
            model, calibration, range(total), ("q_proj", "k_proj", "v_proj")
        ).values()
        return [
            sum((w.float() * gradient).sum().item() ** 2 for w, gradient in pairs)
            for pairs in of_layers
        ]
    batches, turns = make_batches(calibration), [0.0] * total

    def visit(view: LayerView) -> None:
        before = view.entering.float()
        turns[view.layer] += before.shape[:-1].numel() * block_influence(
            before, before + view.branch.float()
        )

    for batch in tqdm(batches, desc="similarity", unit="batch", delay=5, leave=False):
        observe_layers(model, batch.ids, visit)
    return [turn / sum(batch.ids.numel() for batch in batches) for turn in turns]
