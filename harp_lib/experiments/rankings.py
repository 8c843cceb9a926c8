"""Rankings of layers for notebook 09: whose attention is replaced first."""

from tqdm import tqdm

from harp_lib.experiments.changes import common_inputs, layer_counts, ranked_blocks
from harp_lib.experiments.context import Context
from harp_lib.experiments.texts import layer_rows
from harp_lib.methods.gate_norm import gate_norms
from harp_lib.methods.layer_selection import layer_scores, lowest_layers
from harp_lib.methods.refit import explained_by_layer
from harp_lib.names import DENSE
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.results import Cell, Result, rows_of
from harp_lib.text.perplexity import perplexity

EXPLAINED = "explained"  # layers that a linear map of their own token explains best
INFLUENCE = "influence"  # layers whose attention turns the residual stream least (block influence)
GREEDY = "greedy"  # layers without whose attention perplexity rises least, one after the other


def chosen_layers(context: Context, ranking: str, draw: int, count: int) -> tuple[int, ...]:
    """The ``count`` layers that a ranking puts first, rising."""
    rows = rows_of(context.store.get(ranking_cell(context, ranking, draw)))
    scores = rows.astype({"layer": int}).set_index("layer")["value"].astype(float)
    if ranking == EXPLAINED:
        scores = -scores  # explained best is least important
    ranked = scores.reindex(range(context.num_layers), fill_value=float("inf"))
    return tuple(lowest_layers(ranked.tolist(), count))


def ranking_cell(context: Context, ranking: str, draw: int) -> Cell:
    """The score of each layer by a ranking."""
    quantity = EXPLAINED if ranking == EXPLAINED else "score"

    def rank() -> Result:
        return {"rows": layer_rows(quantity, _scores(context, ranking, draw))}

    inputs = {"what": "ranking", **common_inputs(context), "ranking": ranking, "draw": draw}
    inputs |= context.piece_inputs
    if ranking == GREEDY:
        inputs["greedy"] = context.profile["frontier"]["greedy"]
        inputs["layers"] = max(layer_counts(context))
    return Cell(inputs, rank, {"method": DENSE, "ranking": ranking, "seed": draw, "layers": 0})


def _scores(context: Context, ranking: str, draw: int) -> dict[int, float]:
    """The score of each layer by a ranking."""
    if ranking == GREEDY:
        return _greedy(context, draw)
    if ranking == EXPLAINED:
        scores = explained_by_layer(context.model, ranked_blocks(context, draw))
    elif ranking == INFLUENCE:
        scores = layer_scores("similarity", context.model, ranked_blocks(context, draw))
    else:  # layers whose queries and keys are coupled least; no text is read
        scores = gate_norms(context.model)
    return dict(enumerate(scores))


def _greedy(context: Context, draw: int) -> dict[int, float]:
    """The place of each layer, if the attention that costs least perplexity goes first."""
    samples, tokens = context.profile["frontier"]["greedy"]
    blocks = ranked_blocks(context, draw)
    of_each_text = blocks.unflatten(0, (2, -1))[:, : samples // 2, :tokens]
    text = of_each_text.flatten(0, 1)  # (samples, tokens)
    places: dict[int, float] = {}
    for place in tqdm(range(max(layer_counts(context))), desc="greedy", unit="layer", leave=False):
        costs = {}
        for layer in range(context.num_layers):
            if layer not in places:
                skipped = dict.fromkeys([*places, layer], 0.0)
                plan = PruningPlan.value_only(context.num_layers, skipped)
                with temporarily_pruned(context.model, plan):
                    costs[layer] = perplexity(context.model, text)
        places[min(costs, key=costs.get)] = place
    return places
