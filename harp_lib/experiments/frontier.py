"""Notebook 09: attention replaced in ever more layers, by HARP, a refit, and their controls.

Each change is evaluated on held-out documents of the two kinds of text that things are fitted on
and of a third kind that nothing is fitted to or ranked on. A third of the layers is looked at more
closely: finding a pass key, other draws of the calibration text, more and less of it, benchmarks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from harp_lib import config
from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS
from harp_lib.evaluation.evaluator import Evaluator
from harp_lib.experiments.changes import (
    ALPHA_FIT,
    ALPHA_NORM,
    ALPHA_SEARCH,
    CONSTANT,
    DENSE,
    FITTED,
    HARP,
    IN_FLOAT32,
    IN_PAIRS,
    NO_ATTENTION,
    OTHER_SEARCHES,
    TOP,
    WITH_FIT,
    WITHOUT_TEXT,
    Change,
    Prepared,
    fit_cell,
    fitted_blocks,
    ranked_blocks,
)
from harp_lib.experiments.job import (
    HELD_OUT,
    REFIT,
    SEARCHED,
    Job,
    Text,
    described,
    document_rows,
    or_failed,
    search_rows,
)
from harp_lib.experiments.passkeys import PASSKEY, passkeys
from harp_lib.methods.alpha_search import AlphaSearch, search_alphas
from harp_lib.methods.gate_norm import gate_norms
from harp_lib.methods.layer_selection import layer_scores, lowest_layers
from harp_lib.methods.refit import RIDGE, explained_by_layer
from harp_lib.methods.rivals import RIVALS
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.results import Cell, Result, rows_of
from harp_lib.text.perplexity import head_hits, head_nll, perplexity

STORE = "frontier"
EXPLAINED = "explained"  # layers that a linear map of their own token explains best
INFLUENCE = "influence"  # layers whose attention turns the residual stream least
GREEDY = "greedy"
PROMPTS = 12  # pass keys that are added to the calibration text


def frontier(job: Job) -> None:
    """Likelihood of documents and of keys under every change, and what each change costs."""
    _evaluate(job, _changes(job))


def reasons(job: Job) -> None:
    """Likelihood of documents with each way to choose alpha in the layers that HARP prunes."""
    top = _top(job, job.num_pruned)
    changes = [Change(DENSE), Change(HARP, top, TOP, texts=1), *_reasons(job, job.num_pruned)]
    changes.append(Change(NO_ATTENTION, top, TOP))
    changes.append(Change(ALPHA_FIT, top, TOP, texts=2, samples=_samples(job)))
    _evaluate(job, changes)


def _evaluate(job: Job, changes: Iterable[Change]) -> None:
    """Compute the cells of some changes."""
    evaluation = _Evaluation(job)
    _searched(job, max(_counts(job)))  # listed also if no change needs it, for notebooks 02 and 03
    prepared = [_prepared(job, change) for change in changes]
    for one in prepared:
        if one.change.method in OTHER_SEARCHES:
            one.searched_alphas()  # before anything holds the model, as one loads it in float32
    prepared.sort(key=lambda one: -one.lowest)
    # A stream of hidden states moves up only, so changes that begin low come first.
    prepared.reverse()
    with tqdm(prepared, desc="frontier", unit="change") as bar:
        for one in bar:
            bar.set_postfix_str(one.name, refresh=False)
            evaluation.compute(one)
            one.forget()


def frontier_scores(job: Job) -> None:
    """Benchmarks by likelihood for a third of the layers: dense, HARP, and the chosen layers."""
    third = _third(job)
    changes = [Change(DENSE), Change(HARP, _top(job, third), TOP, texts=1)]
    for ranking in (EXPLAINED, INFLUENCE):
        if ranking == EXPLAINED or ranking in _of_model(job, "rankings", ()):
            layers = _chosen(job, ranking, 0, third)
            changes.append(Change(REFIT, layers, ranking, texts=2, samples=_samples(job)))
    evaluator = Evaluator(job.profile, job.seed, "frontier")
    for change in changes:
        one = _prepared(job, change)
        cells = []
        for task in job.profile["frontier"]["tasks"]:
            benchmark = ALL_BENCHMARKS[task]
            inputs = _inputs(job) | _change_inputs(one) | evaluator.inputs(benchmark)
            compute = partial(or_failed, _score, job, one, evaluator, benchmark)
            cells.append(Cell(one.name, task, inputs, compute, one.coordinates))
        job.results(one.name, cells)


def _score(job: Job, one: Prepared, evaluator: Evaluator, benchmark: Any) -> Result:
    """Log-odds margins where answers are chosen, bits per byte where they are written."""
    with one.context():
        if benchmark.choices:
            return evaluator.evaluate(job.model, job.tokenizer, benchmark)
        return evaluator.likelihoods(job.model, job.tokenizer, benchmark)


class _Evaluation:
    """The texts that changes are evaluated on, and the cells of a change."""

    def __init__(self, job: Job) -> None:
        settings = job.profile["frontier"]
        self.job = job
        self.texts = {name: job.unread(name, *settings["held_out"]) for name in job.corpora}
        self.texts[settings["third"]] = job.text(settings["third"], HELD_OUT, settings["held_out"])
        keys = settings["passkey"]
        self.texts[PASSKEY], self.places = passkeys(
            job, keys["lengths"], keys["depths"], keys["keys"]
        )
        self.joined: dict[tuple[str, ...], Text] = {}  # texts that are run together

    def compute(self, one: Prepared) -> None:
        """Compute the cells of a change."""
        inputs = _inputs(self.job) | _change_inputs(one)
        if one.change.method in WITH_FIT:
            self.job.result(Cell(one.name, "fit", inputs, fit_cell(one), one.coordinates))
        names = self._evaluated_on(one.change)
        measures = [head_nll]
        if PASSKEY in names:
            measures.append(head_hits)  # which takes as long again

        @cache
        def measured() -> list[list[float]]:
            return self._together(names).measured_within(one.context(), one.lowest, *measures)

        start = 0
        for name in names:
            text = self.texts[name]
            end = start + len(text.documents)
            cell_inputs = inputs | {
                "evaluated": described(text.corpus),
                "documents": len(text.documents),
            }
            coordinates = one.coordinates | {"corpus": name, "split": text.corpus.split}
            compute = partial(self._part, measured, start, end, name)
            cell = Cell(one.name, f"{name}-{HELD_OUT}", cell_inputs, compute, coordinates)
            self.job.result(cell)
            start = end

    def _evaluated_on(self, change: Change) -> tuple[str, ...]:
        """Pass keys take as long as all other texts: they are for a third of the layers alone."""
        if change.without is not None:
            return (PASSKEY,)
        usual = change.seed == 0 and change.ranking in ("", TOP, EXPLAINED, INFLUENCE)
        fitted_as_usual = change.samples in (0, _samples(self.job)) and change.texts != 1
        third = len(change.layers) in (0, _third(self.job))
        compared = change.method in (DENSE, NO_ATTENTION, HARP, *FITTED)
        if usual and third and compared and (fitted_as_usual or change.method == HARP):
            return tuple(self.texts)
        return tuple(name for name in self.texts if name != PASSKEY)

    def _together(self, names: tuple[str, ...]) -> Text:
        """Several texts as one, of which a change is run at once."""
        if names not in self.joined:
            documents = [document for name in names for document in self.texts[name].documents]
            self.joined[names] = Text(self.texts[names[0]].corpus, documents, self.job)
        return self.joined[names]

    def _part(
        self, measured: Callable[[], list[list[float]]], start: int, end: int, name: str
    ) -> Result:
        """The documents of one text; of pass keys also whether all tokens of the key are found."""
        text = self.texts[name]
        nll, *hits = measured()
        rows = document_rows(nll[start:end], text.tokens)
        if name == PASSKEY:
            [found_tokens] = hits
            for document, found in enumerate(found_tokens[start:end]):
                exact = float(found == text.tokens[document])
                rows.append({"document": document, "quantity": "exact", "value": exact})
            rows = [row | self.places[row["document"]] for row in rows]
        return {"rows": rows}


def _inputs(job: Job) -> dict[str, Any]:
    """What every cell depends on."""
    return {
        **job.inputs,
        "calibration": job.profile["frontier"]["calibration"],
        "seed": job.seed,
        "ridge": RIDGE,
        "context": job.context,
        "read": [described(job.corpus(name)) for name in job.corpora],
    }


def _change_inputs(one: Prepared) -> dict[str, Any]:
    return {"change": one.coordinates, "which": list(one.change.layers)}


def _prepared(job: Job, change: Change) -> Prepared:
    alphas = partial(_searched, job, max(_counts(job)))
    if change.method in OTHER_SEARCHES:
        alphas = partial(_searched_otherwise, job, change)
    return Prepared(job, change, alphas)


def _searched(job: Job, count: int) -> dict[int, float]:
    """Alpha of the top layers: of greedy searches, the longer one begins like the shorter one."""
    corpus = job.corpora[0]
    if count <= job.num_pruned:
        return job.alphas(corpus)
    text = job.text(corpus, SEARCHED)

    def search() -> Result:
        found = search_alphas(job.model, text.windows, count)
        return {"rows": search_rows(found, sum(text.tokens))}

    inputs = text.inputs | {"num_layers": count}
    cell = Cell(HARP, f"search-{corpus}", inputs, search, {"corpus": corpus})
    return _alphas_of(_found(job, cell))


def _searched_otherwise(job: Job, change: Change) -> dict[int, float]:
    """Alpha of the top layers by another search, with a cell of its own."""
    one = Prepared(job, change, dict)
    if change.method == ALPHA_SEARCH:
        text = fitted_blocks(job, change.texts, change.samples, change.seed)
        inputs = _inputs(job)
        tokens = text[:, 1:].numel()
        search = partial(_search_fitted_text, job, text)
    else:
        searched = job.text(job.corpora[0], SEARCHED)
        inputs = _inputs(job) | {"searched": described(searched.corpus)}
        tokens = sum(searched.tokens)
        search = partial(_search_again, job, change.method, searched)

    def compute() -> Result:
        return {"rows": search_rows(search(len(change.layers)), tokens)}

    inputs |= _change_inputs(one)
    return _alphas_of(job.result(Cell(one.name, "search", inputs, compute, one.coordinates)))


def _search_fitted_text(job: Job, text: torch.Tensor, count: int) -> AlphaSearch:
    """HARP's search on the text that a refit reads; one of more layers goes on where it ended."""
    return search_alphas(job.model, text, count, resume=_search_journal(job))


def _search_again(job: Job, method: str, text: Text, count: int) -> AlphaSearch:
    """HARP's own search once more, to see what rounding does to alpha."""
    if method == IN_PAIRS:
        twice = [window for window in text.windows for _ in range(2)]
        return search_alphas(job.model, twice, count)
    exact = replace(job, profile=job.profile | {"dtype": "float32"})
    return search_alphas(exact.model, text.windows, count)


def _search_journal(job: Job) -> Path:
    """Where the candidates of a search are kept, beside the results."""
    return config.RESULTS / job.profile["name"] / ".search" / f"{config.slug(job.name)}.jsonl"


def _alphas_of(search: Result) -> dict[int, float]:
    """The alphas that a search found, by layer, the top layer first."""
    rows = rows_of(search)
    alphas = rows[rows["quantity"] == "alpha"]
    return dict(zip(alphas["layer"].astype(int), alphas["value"], strict=True))


def _found(job: Job, cell: Cell) -> Result:
    """A search or a ranking: computed by :func:`frontier`, and read by :func:`frontier_scores`."""
    if job.store == STORE:
        return job.result(cell)
    return job.read(STORE, cell.method, cell.name)


# Which changes there are


def _counts(job: Job) -> list[int]:
    """How many layers are changed, falling."""
    shares = job.profile["frontier"]["shares"].get(job.name)
    if not shares:
        return [job.num_pruned]
    return _layers_of(job, shares)


def _layers_of(job: Job, shares: Sequence[float]) -> list[int]:
    """Numbers of layers that are such shares of all, falling."""
    return sorted({max(1, round(share * job.num_layers)) for share in shares}, reverse=True)


def _third(job: Job) -> int:
    """The number of layers nearest to a third, among those that are changed."""
    return min(_counts(job), key=lambda count: abs(count - job.num_layers / 3))


def _top(job: Job, count: int) -> tuple[int, ...]:
    return tuple(range(job.num_layers - count, job.num_layers))


def _samples(job: Job) -> int:
    """Pieces of calibration text that layers are fitted on: half of all, the others rank layers."""
    samples, _ = job.profile["frontier"]["calibration"]
    return samples // 2


def _changes(job: Job) -> Iterator[Change]:
    yield Change(DENSE)
    for count in _counts(job):
        top = _top(job, count)
        yield Change(NO_ATTENTION, top, TOP)
        yield Change(HARP, top, TOP, texts=1)
        yield from _fitted(job, count, 0, FITTED)
        for ranking in _of_model(job, "rankings", ()):
            layers = _chosen(job, ranking, 0, count)
            methods = (REFIT,)
            if ranking == INFLUENCE:
                methods = FITTED  # what the refit of these layers is compared with
            for method in methods:
                yield Change(method, layers, ranking, texts=2, samples=_samples(job))
        if count in _layers_of(job, _of_model(job, "searched", ())):
            yield Change(ALPHA_SEARCH, top, TOP, texts=2, samples=_samples(job))
        if count == job.num_pruned:
            yield from _reasons(job, count)
            if job.name in job.profile["frontier"].get("searched_again", ()):
                yield Change(IN_FLOAT32, top, TOP, texts=1)
                yield Change(IN_PAIRS, top, TOP, texts=1)
            if job.name not in job.profile["frontier"].get("without_rivals", ()):
                yield from _rivals(job, count)
        if count == _third(job):
            yield from _closer(job, count)


def _of_model(job: Job, setting: str, default: Any) -> Any:
    """A model's value of a setting of the profile."""
    return job.profile["frontier"].get(setting, {}).get(job.name, default)


def _fitted(job: Job, count: int, seed: int, methods: Sequence[str]) -> Iterator[Change]:
    """The top layers and those explained best, fitted in several ways on the same text."""
    chosen = {TOP: _top(job, count), EXPLAINED: _chosen(job, EXPLAINED, seed, count)}
    for ranking, layers in chosen.items():
        for method in methods:
            yield Change(method, layers, ranking, texts=2, samples=_samples(job), seed=seed)


def _reasons(job: Job, count: int) -> Iterator[Change]:
    """What alpha may be for: to keep the norm, or only to shrink the branch; and no alpha at all.

    The third reason, that it is a projection, is alpha by least squares.
    """
    top = _top(job, count)
    for method in CONSTANT:
        if method != NO_ATTENTION:  # which is there for every number of layers
            yield Change(method, top, TOP)
    yield Change(ALPHA_NORM, top, TOP, texts=2, samples=_samples(job))


def _rivals(job: Job, count: int) -> Iterator[Change]:
    """What else could stand in HARP's layers."""
    top = _top(job, count)
    yield Change(REFIT, top, TOP, texts=1, samples=_samples(job))
    for method in RIVALS:
        if method in WITHOUT_TEXT:
            yield Change(method, top, TOP)
        else:
            yield Change(method, top, TOP, texts=2, samples=_samples(job))


def _closer(job: Job, count: int) -> Iterator[Change]:
    """A third of the layers: other draws, more and less calibration text, and pass keys."""
    for seed in range(1, 1 + _of_model(job, "seeds", 0)):
        yield from _fitted(job, count, seed, FITTED)
    explained = _chosen(job, EXPLAINED, 0, count)
    for samples in _of_model(job, "curve", ()):
        yield Change(REFIT, explained, EXPLAINED, texts=2, samples=samples)
    if job.name in job.profile["frontier"]["passkey_study"]:
        samples = _samples(job)
        for layer in explained:
            rest = tuple(other for other in explained if other != layer)
            yield Change(REFIT, rest, EXPLAINED, texts=2, samples=samples, without=layer)
        yield Change(REFIT, explained, EXPLAINED, texts=2, samples=samples, prompts=PROMPTS)


# Rankings


def _chosen(job: Job, ranking: str, seed: int, count: int) -> tuple[int, ...]:
    """The ``count`` layers that a ranking puts first, rising."""
    inputs = _inputs(job) | {"ranking": ranking, "draw": seed}
    quantity = "score"
    if ranking == EXPLAINED:
        quantity = EXPLAINED
    if ranking == GREEDY:
        inputs |= {"greedy": job.profile["frontier"]["greedy"], "layers": max(_counts(job))}
    coordinates = {"method": DENSE, "ranking": ranking, "seed": seed, "layers": 0}

    def rank() -> Result:
        values = RANKINGS[ranking](job, seed)
        rows = [
            {"quantity": quantity, "layer": layer, "value": value}
            for layer, value in values.items()
        ]
        return {"rows": rows}

    cell = Cell(DENSE, f"ranking-{ranking}-seed-{seed}", inputs, rank, coordinates)
    rows = rows_of(_found(job, cell)).astype({"layer": int})
    scores = rows.set_index("layer")["value"].astype(float)
    if ranking == EXPLAINED:
        scores = -scores  # explained best is least important
    ranked = scores.reindex(range(job.num_layers), fill_value=float("inf"))
    return tuple(lowest_layers(ranked.tolist(), count))


def _explained(job: Job, seed: int) -> dict[int, float]:
    """How much of each layer's attention a linear map of its own token explains."""
    return dict(enumerate(explained_by_layer(job.model, ranked_blocks(job, seed))))


def _influence(job: Job, seed: int) -> dict[int, float]:
    """How far attention turns the residual stream of each layer (block influence)."""
    return dict(enumerate(layer_scores("similarity", job.model, ranked_blocks(job, seed))))


def _gate_norm(job: Job, seed: int) -> dict[int, float]:
    """How strongly queries and keys are coupled; no text is read."""
    return dict(enumerate(gate_norms(job.model)))


def _greedy(job: Job, seed: int) -> dict[int, float]:
    """The place of each layer, if the attention that costs least perplexity goes first."""
    samples, tokens = job.profile["frontier"]["greedy"]
    blocks = ranked_blocks(job, seed)
    of_each_text = blocks.unflatten(0, (2, -1))[:, : samples // 2, :tokens]
    text = of_each_text.flatten(0, 1)  # (samples, tokens)
    places: dict[int, float] = {}
    for place in tqdm(range(max(_counts(job))), desc="greedy", unit="layer", leave=False):
        costs = {}
        for layer in range(job.num_layers):
            if layer not in places:
                skipped = dict.fromkeys([*places, layer], 0.0)
                plan = PruningPlan.value_only(job.num_layers, skipped)
                with temporarily_pruned(job.model, plan):
                    costs[layer] = perplexity(job.model, text)
        places[min(costs, key=costs.get)] = place
    return places


RANKINGS: Mapping[str, Callable[[Job, int], dict[int, float]]] = {
    EXPLAINED: _explained,
    INFLUENCE: _influence,
    "gate-norm": _gate_norm,
    GREEDY: _greedy,
}
"""Functions that score layers by the name of the ranking; the lowest score goes first."""
