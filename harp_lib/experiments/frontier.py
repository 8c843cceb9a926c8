"""Notebook 09: attention replaced in ever more layers, by HARP, a refit, and their controls.

Each change is evaluated on held-out documents of the two kinds of text that things are fitted on
and of a third kind that nothing is fitted to or ranked on. A third of the layers is looked at more
closely: finding a pass key, other draws of the calibration text, more and less of it, benchmarks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import product
from typing import Any

from tqdm import tqdm

from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS, Benchmark
from harp_lib.evaluation.evaluator import Evaluator
from harp_lib.experiments.changes import (
    ALPHA_FIT,
    ALPHA_FIT_SEARCHED,
    ALPHA_NORM,
    ALPHA_SEARCH,
    ALPHA_SHUFFLED,
    ALPHA_SINGLE,
    CONSTANT,
    FITTED,
    IN_FLOAT32,
    IN_PAIRS,
    NO_ATTENTION,
    OTHER_SEARCHES,
    TOP,
    WITH_FIT,
    Change,
    compared,
    counts,
    deepest,
    layers_of,
    searched_alphas,
)
from harp_lib.experiments.costs import COUNTED_RIVALS
from harp_lib.experiments.job import HELD_OUT, Job, or_failed
from harp_lib.experiments.passkeys import PASSKEY, passkeys
from harp_lib.experiments.rankings import EXPLAINED, INFLUENCE, chosen_layers
from harp_lib.experiments.texts import Text, described, document_rows, scalar_rows
from harp_lib.methods.rivals import RIVALS
from harp_lib.names import DENSE, HARP, REFIT
from harp_lib.results import Cell, Result
from harp_lib.text.perplexity import head_hits, head_nll

ORDERS = 3  # random ones of HARP's alphas over its layers
PROMPTS = 12  # pass keys that are added to the calibration text
WITH_PASS_KEYS = {
    (DENSE, ""),
    (NO_ATTENTION, TOP),
    (HARP, TOP),
    *product(FITTED, (TOP, EXPLAINED, INFLUENCE)),
}
"""Methods and rankings that are tested on pass keys, with a third of the layers."""


def frontier(job: Job) -> None:
    """Likelihood of documents and of keys under every change, and what each change costs."""
    _evaluate(job, _changes(job))


def reasons(job: Job) -> None:
    """Likelihood of documents with each way to choose alpha in the layers that HARP prunes."""
    top = _top(job, job.num_pruned)
    changes = [Change(job, DENSE), Change(job, HARP, top, TOP, texts=1)]
    changes += _reasons(job, job.num_pruned)
    changes.append(Change(job, NO_ATTENTION, top, TOP))
    changes.append(Change(job, ALPHA_FIT, top, TOP, texts=2, samples=_samples(job)))
    # Does alpha have to be chosen for each layer, and from how much text?
    changes.append(Change(job, ALPHA_SINGLE, top, TOP, texts=1))
    changes.append(Change(job, ALPHA_FIT_SEARCHED, top, TOP, texts=1))
    for order in range(1, 1 + ORDERS):
        changes.append(Change(job, ALPHA_SHUFFLED, top, TOP, texts=1, seed=order))
    _evaluate(job, changes)


def _evaluate(job: Job, changes: Iterable[Change]) -> None:
    """Compute the cells of some changes."""
    evaluation = _Evaluation(job)
    searched_alphas(job, deepest(job))  # also if no change needs it, for notebooks 02 and 03
    changes = list(changes)
    for change in changes:
        if change.method in OTHER_SEARCHES:
            change.search()  # before anything holds the model: one loads it in float32
    # A stream of hidden states moves up only, so changes that begin low come first.
    changes = sorted(reversed(changes), key=lambda change: change.lowest)
    with tqdm(changes, desc="frontier", unit="change") as bar:
        for change in bar:
            bar.set_postfix_str(change.name, refresh=False)
            evaluation.compute(change)
            change.forget()


def frontier_scores(job: Job) -> None:
    """Benchmarks by likelihood for a third of the layers: dense, HARP, and the chosen layers."""
    third = _third(job)
    changes = [Change(job, DENSE), Change(job, HARP, _top(job, third), TOP, texts=1)]
    for ranking in (EXPLAINED, INFLUENCE):
        if ranking == EXPLAINED or ranking in _of_model(job, "rankings", ()):
            layers = chosen_layers(job, ranking, 0, third)
            changes.append(Change(job, REFIT, layers, ranking, texts=2, samples=_samples(job)))
    evaluator = Evaluator(job.profile, job.seed, "frontier")
    for change in changes:
        cells = []
        for task in job.profile["frontier"]["tasks"]:
            benchmark = ALL_BENCHMARKS[task]
            inputs = change.inputs | evaluator.inputs(benchmark)
            compute = partial(or_failed, _score, job, change, evaluator, benchmark)
            cells.append(Cell(change.name, task, inputs, compute, change.coordinates))
        job.results(change.name, cells)


def _score(job: Job, change: Change, evaluator: Evaluator, benchmark: Benchmark) -> Result:
    """Log-odds margins where answers are chosen, bits per byte where they are written."""
    with change.context():
        if benchmark.choices:
            return evaluator.evaluate(job.model, job.tokenizer, benchmark)
        return evaluator.likelihoods(job.model, job.tokenizer, benchmark)


class _Evaluation:
    """The texts that changes are evaluated on, and the cells of a change."""

    def __init__(self, job: Job) -> None:
        settings = job.profile["frontier"]
        self.job = job
        self.texts = {name: job.unsearched(name, *settings["held_out"]) for name in job.corpora}
        self.texts[settings["third"]] = job.text(settings["third"], HELD_OUT, settings["held_out"])
        keys = settings["passkey"]
        if keys["lengths"]:
            self.texts[PASSKEY], self.places = passkeys(
                job, keys["lengths"], keys["depths"], keys["keys"]
            )
        self.together = cache(self._together)

    def compute(self, change: Change) -> None:
        """Compute the cells of a change."""
        inputs = change.inputs
        if change.method in WITH_FIT:
            self.job.result(Cell(change.name, "fit", inputs, change.fit, change.coordinates))
        if change.method in (HARP, *COUNTED_RIVALS):
            counted = partial(_counted, change)
            tokens = self.job.profile["baselines"]["cost_tokens"]
            cell_inputs = inputs | {"cost_tokens": tokens}
            self.job.result(Cell(change.name, "costs", cell_inputs, counted, change.coordinates))
        names = self._evaluated_on(change)
        measures = [head_nll]
        if PASSKEY in names:
            measures.append(head_hits)  # which takes as long again

        @cache
        def measured() -> list[list[float]]:
            return self.together(names).measured_within(change.context(), change.lowest, *measures)

        start = 0
        for name in names:
            text = self.texts[name]
            end = start + len(text.documents)
            cell_inputs = inputs | {
                "evaluated": described(text.corpus),
                "documents": len(text.documents),
            }
            coordinates = change.coordinates | {"corpus": name, "split": text.corpus.split}
            compute = partial(self._part, measured, start, end, name)
            cell = Cell(change.name, f"{name}-{HELD_OUT}", cell_inputs, compute, coordinates)
            self.job.result(cell)
            start = end

    def _evaluated_on(self, change: Change) -> tuple[str, ...]:
        """Names of the texts; few changes are given pass keys, which take as long as all others."""
        if change.without is not None:
            return tuple(name for name in self.texts if name == PASSKEY)
        is_third = len(change.layers) in (0, _third(self.job))
        usual_texts = ((0, 0), (1, 0), (2, _samples(self.job)))  # nothing, HARP's search, a fit
        is_usual = change.seed == 0 and (change.texts, change.samples) in usual_texts
        if is_third and is_usual and (change.method, change.ranking) in WITH_PASS_KEYS:
            return tuple(self.texts)
        return tuple(name for name in self.texts if name != PASSKEY)

    def _together(self, names: tuple[str, ...]) -> Text:
        """Several texts as one, so that a change is run once for all of them."""
        documents = [document for name in names for document in self.texts[name].documents]
        return Text(self.texts[names[0]].corpus, documents, self.job)

    def _part(
        self, measured: Callable[[], list[list[float]]], start: int, end: int, name: str
    ) -> Result:
        """The rows of one text; for pass keys also whether all tokens of the key are found."""
        text = self.texts[name]
        nll, *hits = measured()
        rows = document_rows(nll[start:end], text.tokens)
        if name == PASSKEY:
            [hits_by_document] = hits
            for document, num_hits in enumerate(hits_by_document[start:end]):
                exact = float(num_hits == text.tokens[document])
                rows.append({"document": document, "quantity": "exact", "value": exact})
            rows = [row | self.places[row["document"]] for row in rows]
        return {"rows": rows}


def _counted(change: Change) -> Result:
    """What a change leaves of the dense model's costs."""
    return {"rows": scalar_rows(**change.costs_left())}


def _third(job: Job) -> int:
    """The number of layers nearest to a third, among those that are changed."""
    return min(counts(job), key=lambda count: abs(count - job.num_layers / 3))


def _top(job: Job, count: int) -> tuple[int, ...]:
    return tuple(range(job.num_layers - count, job.num_layers))


def _samples(job: Job) -> int:
    """Pieces of calibration text that layers are fitted on: half of all, the others rank layers."""
    samples, _ = job.profile["frontier"]["calibration"]
    return samples // 2


def _changes(job: Job) -> Iterator[Change]:
    yield Change(job, DENSE)
    for count in counts(job):
        top = _top(job, count)
        yield Change(job, NO_ATTENTION, top, TOP)
        yield Change(job, HARP, top, TOP, texts=1)
        yield from _fitted(job, count, 0, FITTED)
        for ranking in _of_model(job, "rankings", ()):
            layers = chosen_layers(job, ranking, 0, count)
            methods = (REFIT,)
            if ranking == INFLUENCE:
                methods = FITTED  # what the refit of these layers is compared with
            for method in methods:
                yield Change(job, method, layers, ranking, texts=2, samples=_samples(job))
        if count in layers_of(job, _of_model(job, "searched", ())):
            yield Change(job, ALPHA_SEARCH, top, TOP, texts=2, samples=_samples(job))
        if count == _third(job):
            yield from _closer(job, count)
    yield from _compared(job)


def _compared(job: Job) -> Iterator[Change]:
    """What is compared with HARP in one number of top layers, which has a setting of its own."""
    count = compared(job)
    top = _top(job, count)
    yield Change(job, NO_ATTENTION, top, TOP)
    yield Change(job, HARP, top, TOP, texts=1)
    yield Change(job, REFIT, top, TOP, texts=2, samples=_samples(job))
    yield from _reasons(job, count)
    if job.name in job.profile["frontier"].get("searched_again", ()):
        yield Change(job, IN_FLOAT32, top, TOP, texts=1)
        yield Change(job, IN_PAIRS, top, TOP, texts=1)
    if job.name not in job.profile["frontier"].get("without_rivals", ()):
        yield from _rivals(job, count)


def _of_model(job: Job, setting: str, default: Any) -> Any:
    """A model's value of a setting of the profile."""
    return job.profile["frontier"].get(setting, {}).get(job.name, default)


def _fitted(job: Job, count: int, seed: int, methods: Sequence[str]) -> Iterator[Change]:
    """The top layers and those explained best, fitted in several ways on the same text."""
    chosen = {TOP: _top(job, count), EXPLAINED: chosen_layers(job, EXPLAINED, seed, count)}
    for ranking, layers in chosen.items():
        for method in methods:
            yield Change(job, method, layers, ranking, texts=2, samples=_samples(job), seed=seed)


def _reasons(job: Job, count: int) -> Iterator[Change]:
    """What alpha may be for: to keep the norm, or only to shrink the branch; and no alpha at all.

    The third reason, that it is a projection, is alpha by least squares.
    """
    top = _top(job, count)
    for method in CONSTANT:
        if method != NO_ATTENTION:  # which is there for every number of layers
            yield Change(job, method, top, TOP)
    yield Change(job, ALPHA_NORM, top, TOP, texts=2, samples=_samples(job))


def _rivals(job: Job, count: int) -> Iterator[Change]:
    """What else could stand in HARP's layers."""
    top = _top(job, count)
    yield Change(job, REFIT, top, TOP, texts=1, samples=_samples(job))
    for method in RIVALS:
        if method == "windowed":  # which is not fitted
            yield Change(job, method, top, TOP)
        else:
            yield Change(job, method, top, TOP, texts=2, samples=_samples(job))


def _closer(job: Job, count: int) -> Iterator[Change]:
    """A third of the layers: other draws, more and less calibration text, and pass keys."""
    for seed in range(1, 1 + _of_model(job, "seeds", 0)):
        yield from _fitted(job, count, seed, FITTED)
        if INFLUENCE in _of_model(job, "rankings", ()):
            layers = chosen_layers(job, INFLUENCE, seed, count)
            samples = _samples(job)
            yield Change(job, REFIT, layers, INFLUENCE, texts=2, samples=samples, seed=seed)
    explained = chosen_layers(job, EXPLAINED, 0, count)
    for samples in _of_model(job, "curve", ()):
        yield Change(job, REFIT, explained, EXPLAINED, texts=2, samples=samples)
    if job.name in job.profile["frontier"]["passkey_study"]:
        samples = _samples(job)
        for layer in explained:
            rest = tuple(other for other in explained if other != layer)
            yield Change(job, REFIT, rest, EXPLAINED, texts=2, samples=samples, without=layer)
        yield Change(job, REFIT, explained, EXPLAINED, texts=2, samples=samples, prompts=PROMPTS)
