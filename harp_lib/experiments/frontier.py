"""Notebook 09: layers that go by HARP, refitted, and by rivals: two kinds of held-out text, and a key to be found."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any

import torch
from tqdm import tqdm

from harp_lib import accounting
from harp_lib.experiments.job import CALIBRATION, HELD_OUT, REFIT, SEARCHED, Job, Text, described
from harp_lib.experiments.rivals import RIVALS
from harp_lib.measure.text import Corpus, Window, load_corpus
from harp_lib.methods.alpha_search import search_alphas
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.layer_selection import lowest_layers
from harp_lib.methods.refit import RIDGE, Refit, explained_by_layer, refit_values
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned

KEY = "31629487501376492865"  # pass keys are four of its digits
FILLER = "The river runs past the mill. Boats come up at noon, and leave before dark. Somebody mends a net. "
CHOSEN = f"{REFIT}-chosen"
Change = tuple[Callable[[], PruningPlan], Callable[[], AbstractContextManager[None]]]
"""A plan that says which layers change (what lies below them is run once), and the context in which they are."""


def frontier(job: Job) -> None:
    """Every way to do without attention in the top layers: likelihoods of documents and of keys, and what it costs."""
    settings = job.profile["frontier"]
    texts = {corpus: job.text(corpus, HELD_OUT, settings["held_out"]) for corpus in job.corpora}
    texts["passkey"] = passkeys(job, **settings["passkey"])
    whole = Text(texts["passkey"].corpus, [part for text in texts.values() for part in text.documents], job)
    read = [load_corpus(corpus, CALIBRATION, job.profile["datasets"]) for corpus in job.corpora]
    size = job.profile["baselines"]["calibration"][REFIT]
    inputs = job.inputs | {"calibration": size, "seed": job.seed, "ridge": RIDGE, "context": job.context}
    inputs |= {"read": [described(text) for text in read]}
    shares = settings["shares"].get(job.name, ())
    counts = sorted({job.num_pruned, *(round(share * job.num_layers) for share in shares)} - {0})

    def ranked() -> dict[str, Any]:
        return {"explained": explained_by_layer(job.model, job.refit_blocks(2))}

    explained, changes = job.cell("dense", "explained", inputs, ranked)["explained"], []
    for count in reversed(counts):
        best, top = lowest_layers([-share for share in explained], count), job.num_layers - count
        made = _changes(job, count, counts[-1], inputs, best)
        changes += [(best[0] if name == CHOSEN else top, name, count, change) for name, change in made.items()]
    changes.sort(key=itemgetter(0))  # the lowest layers first: what lies below is run once
    none = _plan(job, {})
    changes.append((job.num_layers, "dense", 0, (lambda: none, lambda: temporarily_pruned(job.model, none))))
    for _, name, count, (plan, change) in tqdm(changes, desc="frontier", unit="model"):
        measured = functools.cache(lambda plan=plan, change=change: whole.nll(plan(), change()))
        start = 0
        for corpus, text in texts.items():
            part = slice(start, start := start + len(text.documents))
            wanted = inputs | {"layers": count, "evaluated": described(text.corpus), "documents": len(text.documents)}

            def compute(measured=measured, part=part) -> dict[str, Any]:
                return {"nll": measured()["nll"][part], "tokens": measured()["tokens"][part]}

            job.cell(f"{name}-{count:02d}" if count else name, f"{corpus}-{HELD_OUT}", wanted, compute)


def _changes(job: Job, count: int, most: int, inputs: dict[str, Any], best: list[int]) -> dict[str, Change]:
    """What happens to the ``count`` top layers, or the ``best`` explained; rivals where as many go as elsewhere."""
    model, layers = job.model, range(job.num_layers - count, job.num_layers)
    alphas = dict(list(_searched(job, most).items())[:count])
    zero, harp = (_plan(job, values) for values in (dict.fromkeys(layers, 0.0), alphas))
    found: dict[str, Change] = {}
    for name, kinds in ((CHOSEN, 2), (REFIT, 1), (f"{REFIT}-two", 2)):

        @functools.cache
        def fit(name: str = name, kinds: int = kinds) -> Refit:
            own = kinds == 1 and count == job.num_pruned
            chosen = best if name == CHOSEN else None
            return job.refit() if own else refit_values(model, job.refit_blocks(kinds), count, chosen)

        def about(fit: Callable[[], Refit] = fit) -> dict[str, Any]:
            return {"seconds": fit().seconds, "explained": fit().explained} | _left(job, fit().plan)

        job.cell(f"{name}-{count:02d}", "fit", inputs | {"layers": count, "kinds": kinds}, about)
        found[name] = (
            lambda fit=fit: fit().plan,
            lambda fit=fit: temporarily_pruned(model, fit().plan, weights=fit().weights),
        )
    for name, plan in (("alpha-0", zero), ("harp", harp)):
        found[name] = (lambda plan=plan: plan, lambda plan=plan: temporarily_pruned(model, plan))
    if count == job.num_pruned:
        stream = functools.cache(lambda: _stream(job, layers[0]))
        for name, rival in RIVALS.items():
            found[name] = (lambda: harp, lambda rival=rival: rival(model, stream(), layers))
    return found


def _stream(job: Job, layer: int) -> LayerStream:
    """What enters a layer of the dense model on the text that layers are refitted on."""
    stream = LayerStream(job.model, job.refit_blocks())
    stream.entering(layer)
    return stream


def _searched(job: Job, most: int) -> dict[int, float]:
    """Alpha of the top layers: of greedy searches, the longer one begins like the shorter one."""
    first = job.corpora[0]
    if most <= job.num_pruned:
        return job.alphas(first)
    text = job.text(first, SEARCHED)

    def compute() -> dict[str, Any]:
        found = search_alphas(job.model, text.windows, most)
        return {"alphas": found.alphas, "num_model_layers": job.num_layers, "seconds": found.seconds}

    found = job.cell("harp", f"search-{first}", text.inputs | {"num_layers": most}, compute)["alphas"]
    return {job.num_layers - 1 - depth: alpha for depth, alpha in enumerate(found)}


def _plan(job: Job, alphas: dict[int, float]) -> PruningPlan:
    return PruningPlan.value_only(job.num_layers, alphas)


def _left(job: Job, plan: PruningPlan) -> dict[str, float]:
    """Shares of the dense model's operations and bytes of cache that value-only layers leave, counted."""
    config, tokens = job.model.config, job.profile["baselines"]["cost_tokens"]
    prefill = [accounting.prefill_flops(config, each, tokens, True, True, tail_only=True) for each in (plan, None)]
    decode = [accounting.decode_flops(config, each, tokens, True) for each in (plan, None)]
    cache = [accounting.kv_bytes_per_token(config, each, job.model.dtype) for each in (plan, None)]
    pairs = {"prefill left": prefill, "decode left": decode, "cache left": cache}
    return {name: left / dense for name, (left, dense) in pairs.items()} | {"counted at": tokens}


def passkeys(job: Job, tokens: int, depths: int, keys: int) -> Text:
    """Texts of about ``tokens`` tokens that name a key, ``keys`` at each depth, and ask for it: it is predicted."""
    filler = FILLER * tokens
    per_token = len(filler) / len(job.tokenizer(filler, add_special_tokens=False, verbose=False).input_ids)
    room, texts, windows = int(tokens * per_token), [], []
    for depth in range(depths):
        for number in range(keys):
            first = 2 * (number + depth) % len(KEY)
            key = (KEY + KEY)[first : first + 4]
            place = room * depth // max(1, depths - 1)
            told = f"{filler[:place]}\nThe pass key is {key}. Remember it.\n{filler[: room - place]}"
            asked = f"Find the pass key in this text.\n{told}\nWhat is the pass key? The pass key is"
            before, whole = (job.tokenizer(text).input_ids for text in (asked, f"{asked} {key}"))
            texts.append(f"{asked} {key}")
            windows.append([Window(torch.tensor(whole), len(whole) - len(before))])
    return Text(Corpus("passkey", HELD_OUT, "embedded", tuple(texts)), windows, job)
