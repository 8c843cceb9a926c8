"""Notebook 09: attention replaced in ever more layers, by HARP, a refit, and their controls.

Each change is evaluated on held-out documents of the two kinds of text that things are fitted on
and of another kind, which nothing is fitted to or ranked on. A third of the layers is looked at
more closely: finding a pass key, other draws of the calibration text, more and less of it,
benchmarks.
"""

from collections.abc import Callable, Iterator, Sequence
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
    deepest,
    layer_counts,
    layers_of,
    top_search_cell,
)
from harp_lib.experiments.context import HELD_OUT, Context, or_failed
from harp_lib.experiments.costs import COUNTED_RIVALS
from harp_lib.experiments.passkeys import PASSKEY, passkeys
from harp_lib.experiments.rankings import EXPLAINED, INFLUENCE, chosen_layers, ranking_cell
from harp_lib.experiments.texts import Text, described, document_rows, scalar_rows
from harp_lib.methods.rivals import RIVALS
from harp_lib.names import DENSE, HARP, REFIT
from harp_lib.results import Cell, Result, behind_bar
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


def frontier(context: Context) -> Iterator[Cell]:
    """Likelihood of documents and of keys under every change, and what each change costs."""
    return _cells_of(context, [*_changes(context), *_compared(context)])


def reasons(context: Context) -> Iterator[Cell]:
    """Likelihood of documents with each way to choose alpha in the layers that HARP prunes."""
    change = partial(Change, context)
    top = _top(context, context.num_pruned)
    changes = [change(DENSE), change(HARP, top, TOP, texts=1)]
    changes += _reasons(context, context.num_pruned)
    changes.append(change(NO_ATTENTION, top, TOP))
    changes.append(_on_both_texts(context, ALPHA_FIT, top, TOP))
    # Does alpha have to be chosen for each layer, and from how much text?
    changes.append(change(ALPHA_SINGLE, top, TOP, texts=1))
    changes.append(change(ALPHA_FIT_SEARCHED, top, TOP, texts=1))
    for order in range(1, 1 + ORDERS):
        changes.append(change(ALPHA_SHUFFLED, top, TOP, texts=1, draw=order))
    return _cells_of(context, changes)


def _cells_of(context: Context, changes: Sequence[Change]) -> Iterator[Cell]:
    """The cells of some changes, with the searches and rankings that they rest on."""
    yield top_search_cell(context, deepest(context))  # notebooks 02 and 03 show it
    # Before anything holds the model: one of the searches loads it in float32.
    yield from [change.search_cell() for change in changes if change.method in OTHER_SEARCHES]
    for ranking, draw in dict.fromkeys((change.ranking, change.draw) for change in changes):
        if ranking not in ("", TOP):
            yield ranking_cell(context, ranking, draw)
    evaluation = _Evaluation(context)
    # A stream of hidden states moves up only, so changes that begin low come first.
    lowest_first = sorted(reversed(changes), key=lambda change: change.lowest)
    with tqdm(lowest_first, desc="frontier", unit="change") as bar:
        for change in bar:
            bar.set_postfix_str(f"{change.method}, {len(change.layers)} layers", refresh=False)
            yield from evaluation.cells(change)
            change.forget()


def frontier_scores(context: Context) -> Iterator[Cell]:
    """Benchmarks by likelihood for a third of the layers: dense, HARP, and the chosen layers."""
    count = _a_third(context)
    change = partial(Change, context)
    changes = [change(DENSE), change(HARP, _top(context, count), TOP, texts=1)]
    for ranking in (EXPLAINED, INFLUENCE):
        if ranking == EXPLAINED or ranking in _of_model(context, "rankings", ()):
            layers = chosen_layers(context, ranking, 0, count)
            changes.append(_on_both_texts(context, REFIT, layers, ranking))
    evaluator = Evaluator(context.profile, context.seed, "frontier")
    for change in changes:
        cells = []
        for task in context.profile["frontier"]["tasks"]:
            benchmark = ALL_BENCHMARKS[task]
            inputs = {"what": "scores", **change.inputs, **evaluator.inputs(benchmark)}
            compute = partial(or_failed, _score, context, change, evaluator, benchmark)
            cells.append(Cell(inputs, compute, change.about | {"task": task}))
        yield from behind_bar(f"{change.method}, {change.ranking or 'no'} layers", cells)


def _score(context: Context, change: Change, evaluator: Evaluator, benchmark: Benchmark) -> Result:
    """Log-odds margins where answers are chosen, bits per byte where they are written."""
    with change.applied():
        if benchmark.choices:
            return evaluator.evaluate(context.model, context.tokenizer, benchmark)
        return evaluator.likelihoods(context.model, context.tokenizer, benchmark)


class _Evaluation:
    """The texts that changes are evaluated on, and the cells of a change."""

    def __init__(self, context: Context) -> None:
        settings = context.profile["frontier"]
        size = settings["held_out"]
        self.context = context
        self.texts = {name: context.unsearched(name, *size) for name in context.corpora}
        self.texts[settings["unseen"]] = context.text(settings["unseen"], HELD_OUT, size)
        keys = settings["passkey"]
        if keys["lengths"]:
            self.texts[PASSKEY], self.places = passkeys(
                context, keys["lengths"], keys["depths"], keys["keys"]
            )
        self.together = cache(self._together)

    def cells(self, change: Change) -> Iterator[Cell]:
        """What a change found and costs, and its likelihood of each text."""
        if change.method == ALPHA_SINGLE:
            yield change.grid_cell()
        if change.method in WITH_FIT:
            yield change.fit_cell()
        if change.method in (HARP, *COUNTED_RIVALS):
            inputs = {"what": "costs", **change.inputs}
            inputs["cost_tokens"] = self.context.profile["baselines"]["cost_tokens"]
            yield Cell(inputs, partial(_counted, change), change.about)
        names = self._evaluated_on(change)
        measures = [head_nll]
        if PASSKEY in names:
            measures.append(head_hits)  # which takes as long again

        @cache
        def measured() -> dict[str, list[list[float]]]:
            """Each measure by text: of all at once, because running the model takes longest."""
            together = self.together(names)
            of_all = together.measured_within(change.applied(), change.lowest, *measures)
            by_text = {}
            start = 0
            for name in names:
                end = start + len(self.texts[name].documents)
                by_text[name] = [values[start:end] for values in of_all]
                start = end
            return by_text

        for name in names:
            text = self.texts[name]
            inputs = {
                "what": "likelihood of documents",
                **change.inputs,
                "evaluated": described(text.corpus),
                "documents": len(text.documents),
            }
            about = change.about | {"corpus": name, "split": text.corpus.split}
            yield Cell(inputs, partial(self._rows, measured, name), about)

    def _evaluated_on(self, change: Change) -> tuple[str, ...]:
        """Names of the texts; few changes are given pass keys, which take as long as all others."""
        if change.without is not None:
            return tuple(name for name in self.texts if name == PASSKEY)
        is_third = len(change.layers) in (0, _a_third(self.context))
        usual_texts = ((0, 0), (1, 0), (2, _samples(self.context)))  # nothing, HARP's search, a fit
        is_usual = change.draw == 0 and (change.texts, change.samples) in usual_texts
        if is_third and is_usual and (change.method, change.ranking) in WITH_PASS_KEYS:
            return tuple(self.texts)
        return tuple(name for name in self.texts if name != PASSKEY)

    def _together(self, names: tuple[str, ...]) -> Text:
        """Several texts as one, so that a change is run once for all of them."""
        documents = [document for name in names for document in self.texts[name].documents]
        first = self.texts[names[0]]
        return Text(first.corpus, documents, first.model, first.model_inputs)

    def _rows(self, measured: Callable[[], dict[str, list[list[float]]]], name: str) -> Result:
        """The rows of one text; for pass keys also whether all tokens of the key are found."""
        text = self.texts[name]
        nll, *hits = measured()[name]
        rows = document_rows(nll, text.tokens)
        if name == PASSKEY:
            [hits_by_document] = hits
            for document, num_hits in enumerate(hits_by_document):
                exact = float(num_hits == text.tokens[document])
                rows.append({"document": document, "quantity": "exact", "value": exact})
            rows = [row | self.places[row["document"]] for row in rows]
        return {"rows": rows}


def _counted(change: Change) -> Result:
    """What a change leaves of the dense model's costs."""
    return {"rows": scalar_rows(**change.costs_left())}


def _a_third(context: Context) -> int:
    """The number of layers nearest to a third, among those that are changed."""
    return min(layer_counts(context), key=lambda count: abs(count - context.num_layers / 3))


def _top(context: Context, count: int) -> tuple[int, ...]:
    return tuple(range(context.num_layers - count, context.num_layers))


def _samples(context: Context) -> int:
    """Pieces of calibration text that layers are fitted on: half of all, the others rank layers."""
    samples, _ = context.profile["frontier"]["calibration"]
    return samples // 2


def _on_both_texts(
    context: Context, method: str, layers: tuple[int, ...], ranking: str, **others: int
) -> Change:
    """A change that is fitted on both kinds of calibration text."""
    return Change(context, method, layers, ranking, texts=2, samples=_samples(context), **others)


def _changes(context: Context) -> Iterator[Change]:
    yield Change(context, DENSE)
    for count in layer_counts(context):
        top = _top(context, count)
        yield Change(context, NO_ATTENTION, top, TOP)
        yield Change(context, HARP, top, TOP, texts=1)
        yield from _all_fits(context, count, 0)
        for ranking in _of_model(context, "rankings", ()):
            layers = chosen_layers(context, ranking, 0, count)
            methods = (REFIT,)
            if ranking == INFLUENCE:
                methods = FITTED  # what the refit of these layers is compared with
            for method in methods:
                yield _on_both_texts(context, method, layers, ranking)
        if count in layers_of(context, _of_model(context, "searched", ())):
            yield _on_both_texts(context, ALPHA_SEARCH, top, TOP)
        if count == _a_third(context):
            yield from _closer(context, count)


def _compared(context: Context) -> Iterator[Change]:
    """What is compared with HARP in one number of top layers, which has a setting of its own."""
    count = compared(context)
    top = _top(context, count)
    yield Change(context, NO_ATTENTION, top, TOP)
    yield Change(context, HARP, top, TOP, texts=1)
    yield _on_both_texts(context, REFIT, top, TOP)
    yield from _reasons(context, count)
    if context.name in context.profile["frontier"].get("searched_again", ()):
        yield Change(context, IN_FLOAT32, top, TOP, texts=1)
        yield Change(context, IN_PAIRS, top, TOP, texts=1)
    yield from _rivals(context, count)


def _of_model(context: Context, setting: str, default: Any) -> Any:
    """A model's value of a setting of the profile."""
    return context.profile["frontier"].get(setting, {}).get(context.name, default)


def _all_fits(context: Context, count: int, draw: int) -> Iterator[Change]:
    """The top layers and those explained best, fitted in several ways on the same text."""
    chosen = {TOP: _top(context, count), EXPLAINED: chosen_layers(context, EXPLAINED, draw, count)}
    for ranking, layers in chosen.items():
        for method in FITTED:
            yield _on_both_texts(context, method, layers, ranking, draw=draw)


def _reasons(context: Context, count: int) -> Iterator[Change]:
    """What alpha may be for: to keep the norm, or only to shrink the branch; and no alpha at all.

    That it is a projection, the other reason, is alpha by least squares.
    """
    top = _top(context, count)
    for method in CONSTANT:
        if method != NO_ATTENTION:  # which is there for every number of layers
            yield Change(context, method, top, TOP)
    yield norm_keeping(context, count)


def norm_keeping(context: Context, count: int) -> Change:
    """The alpha of the top layers that keeps the norm of the residual stream."""
    return _on_both_texts(context, ALPHA_NORM, _top(context, count), TOP)


def _rivals(context: Context, count: int) -> Iterator[Change]:
    """What else could stand in HARP's layers."""
    top = _top(context, count)
    yield Change(context, REFIT, top, TOP, texts=1, samples=_samples(context))
    for method in RIVALS:
        if method == "windowed":  # which is not fitted
            yield Change(context, method, top, TOP)
        else:
            yield _on_both_texts(context, method, top, TOP)


def _closer(context: Context, count: int) -> Iterator[Change]:
    """A third of the layers: other draws, more and less calibration text, and pass keys."""
    for draw in range(1, 1 + _of_model(context, "seeds", 0)):
        yield from _all_fits(context, count, draw)
        if INFLUENCE in _of_model(context, "rankings", ()):
            layers = chosen_layers(context, INFLUENCE, draw, count)
            yield _on_both_texts(context, REFIT, layers, INFLUENCE, draw=draw)
    explained = chosen_layers(context, EXPLAINED, 0, count)
    for samples in _of_model(context, "curve", ()):
        yield Change(context, REFIT, explained, EXPLAINED, texts=2, samples=samples)
    if context.name in context.profile["frontier"]["passkey_study"]:
        for layer in explained:
            rest = tuple(other for other in explained if other != layer)
            yield _on_both_texts(context, REFIT, rest, EXPLAINED, without=layer)
        yield _on_both_texts(context, REFIT, explained, EXPLAINED, prompts=PROMPTS)
