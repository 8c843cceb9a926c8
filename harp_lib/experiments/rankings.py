"""Rankings of layers for notebook 09: whose attention is replaced first."""

from tqdm import tqdm

from harp_lib.experiments.changes import common_inputs, counts, ranked_blocks, shared_result
from harp_lib.experiments.job import Job
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


def chosen_layers(job: Job, ranking: str, seed: int, count: int) -> tuple[int, ...]:
    """The ``count`` layers that a ranking puts first, rising."""
    inputs = common_inputs(job) | {"ranking": ranking, "draw": seed} | job.piece_inputs
    quantity = "score"
    if ranking == EXPLAINED:
        quantity = EXPLAINED
    if ranking == GREEDY:
        inputs |= {"greedy": job.profile["frontier"]["greedy"], "layers": max(counts(job))}
    coordinates = {"method": DENSE, "ranking": ranking, "seed": seed, "layers": 0}

    def rank() -> Result:
        return {"rows": layer_rows(quantity, _scores(job, ranking, seed))}

    cell = Cell(DENSE, f"ranking-{ranking}-seed-{seed}", inputs, rank, coordinates)
    rows = rows_of(shared_result(job, cell)).astype({"layer": int})
    scores = rows.set_index("layer")["value"].astype(float)
    if ranking == EXPLAINED:
        scores = -scores  # explained best is least important
    ranked = scores.reindex(range(job.num_layers), fill_value=float("inf"))
    return tuple(lowest_layers(ranked.tolist(), count))


def _scores(job: Job, ranking: str, seed: int) -> dict[int, float]:
    """The score of each layer by a ranking."""
    if ranking == GREEDY:
        return _greedy(job, seed)
    if ranking == EXPLAINED:
        scores = explained_by_layer(job.model, ranked_blocks(job, seed))
    elif ranking == INFLUENCE:
        scores = layer_scores("similarity", job.model, ranked_blocks(job, seed))
    else:  # layers whose queries and keys are coupled least; no text is read
        scores = gate_norms(job.model)
    return dict(enumerate(scores))


def _greedy(job: Job, seed: int) -> dict[int, float]:
    """The place of each layer, if the attention that costs least perplexity goes first."""
    samples, tokens = job.profile["frontier"]["greedy"]
    blocks = ranked_blocks(job, seed)
    of_each_text = blocks.unflatten(0, (2, -1))[:, : samples // 2, :tokens]
    text = of_each_text.flatten(0, 1)  # (samples, tokens)
    places: dict[int, float] = {}
    for place in tqdm(range(max(counts(job))), desc="greedy", unit="layer", leave=False):
        costs = {}
        for layer in range(job.num_layers):
            if layer not in places:
                skipped = dict.fromkeys([*places, layer], 0.0)
                plan = PruningPlan.value_only(job.num_layers, skipped)
                with temporarily_pruned(job.model, plan):
                    costs[layer] = perplexity(job.model, text)
        places[min(costs, key=costs.get)] = place
    return places
