"""Notebook 09: layers that go by HARP, refitted, and by rivals: two kinds of held-out text, and a
key to be found.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any

import torch

from harp_lib import accounting
from harp_lib.experiments.job import HELD_OUT, REFIT, SEARCHED, Job, Text, described
from harp_lib.methods.alpha_search import search_alphas
from harp_lib.methods.calibration import LayerStream
from harp_lib.methods.layer_selection import lowest_layers
from harp_lib.methods.refit import RIDGE, Refit, explained_by_layer, refit_values
from harp_lib.methods.rivals import RIVALS
from harp_lib.pruning.plan import PruningPlan
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.text.corpora import Corpus
from harp_lib.text.perplexity import Window

KEY = "31629487501376492865"  # pass keys are four of its digits
FILLER = "The river runs past the mill. Boats come up at noon, and leave before dark. Somebody mends a net. "
CHOSEN = f"{REFIT}-chosen"


def frontier(job: Job) -> None:
    """Every way to do without attention in the top layers: likelihoods of documents and of keys,
    and what it costs.
    """
    settings, model, total = job.profile["frontier"], job.model, job.num_layers
    texts = {corpus: job.text(corpus, HELD_OUT, settings["held_out"]) for corpus in job.corpora}
    texts["passkey"] = passkeys(job, **settings["passkey"])
    whole = Text(
        texts["passkey"].corpus, [part for text in texts.values() for part in text.documents], job
    )
    size = job.profile["baselines"]["calibration"][REFIT]
    inputs = job.inputs | {
        "calibration": size,
        "seed": job.seed,
        "ridge": RIDGE,
        "context": job.context,
    }
    inputs |= {"read": [described(job.corpus(name)) for name in job.corpora]}
    shares = settings["shares"].get(job.name, ())
    counts = sorted(
        {job.num_pruned, *(round(share * total) for share in shares)} - {0}, reverse=True
    )
    seen = job.cell(
        "dense",
        "explained",
        inputs,
        lambda: {"explained": explained_by_layer(model, job.refit_blocks(2))},
    )
    missed = [-share for share in seen["explained"]]
    alphas, cells = _searched(job, counts[0]), []
    changes = [(total, "dense", 0, partial(temporarily_pruned, model, PruningPlan(total, {})))]
    for count in counts:
        made = _changes(job, alphas[:count], lowest_layers(missed, count), inputs)
        changes += [(lowest, f"{kind}-{count:02d}", count, change) for lowest, kind, change in made]
    for lowest, name, count, change in sorted(
        changes, key=itemgetter(0)
    ):  # what lies below is run once
        measured = cache(lambda lowest=lowest, change=change: whole.nll_within(change(), lowest))
        start = 0
        for corpus, text in texts.items():
            part = slice(start, start := start + len(text.documents))
            wanted = inputs | {
                "layers": count,
                "evaluated": described(text.corpus),
                "documents": len(text.documents),
            }
            cells.append((name, f"{corpus}-{HELD_OUT}", wanted, _part, measured, part))
    job.cells("frontier", cells)


def _part(measured: Callable[[], dict[str, list]], part: slice) -> dict[str, list]:
    return {name: values[part] for name, values in measured().items()}


def _searched(job: Job, count: int) -> list[float]:
    """Alpha of the top layers: of greedy searches, the longer one begins like the shorter one."""
    first = job.corpora[0]
    if count <= job.num_pruned:
        return list(job.alphas(first).values())
    text = job.text(first, SEARCHED)

    def search() -> dict[str, Any]:
        found = search_alphas(job.model, text.windows, count)
        return {
            "alphas": found.alphas,
            "num_model_layers": job.num_layers,
            "seconds": found.seconds,
        }

    return job.cell("harp", f"search-{first}", text.inputs | {"num_layers": count}, search)[
        "alphas"
    ]


def _changes(
    job: Job, alphas: list[float], best: list[int], inputs: dict[str, Any]
) -> Iterator[tuple]:
    """What happens to as many top layers as there are alphas, or to the ``best`` explained; rivals
    at HARP's number.

    Of each change the lowest layer, what it is called, and what makes the context in which the
    model is changed.
    """
    model, total, count = job.model, job.num_layers, len(alphas)
    top, harps = range(total - count, total), count == job.num_pruned

    def fit(layers: Sequence[int], kinds: int) -> Refit:
        return (
            job.refit()
            if harps and kinds == 1
            else refit_values(model, job.refit_blocks(kinds), count, layers)
        )

    def about(refit: Callable[[], Refit]) -> dict[str, Any]:
        return {"seconds": refit().seconds, "explained": refit().explained} | _left(
            job, refit().plan
        )

    @cache
    def stream() -> LayerStream:
        found = LayerStream(model, job.refit_blocks())
        found.entering(top[0])  # once for all rivals
        return found

    for kind, layers, kinds in ((CHOSEN, best, 2), (REFIT, top, 1), (f"{REFIT}-two", top, 2)):
        refit = cache(partial(fit, layers, kinds))
        job.cell(
            f"{kind}-{count:02d}", "fit", inputs | {"layers": count, "kinds": kinds}, about, refit
        )
        yield (
            layers[0],
            kind,
            lambda refit=refit: temporarily_pruned(model, refit().plan, weights=refit().weights),
        )
    for kind, values in (("alpha-0", [0.0] * count), ("harp", alphas)):
        yield (
            top[0],
            kind,
            partial(temporarily_pruned, model, PruningPlan.value_only(total, values)),
        )
    for kind, rival in RIVALS.items() if harps else ():
        yield top[0], kind, lambda rival=rival: rival(model, stream(), top)


def _left(job: Job, plan: PruningPlan) -> dict[str, float]:
    """Shares of the dense model's operations and bytes of cache that value-only layers leave,
    counted.
    """
    config, tokens = job.model.config, job.profile["baselines"]["cost_tokens"]
    left, dense = (
        {
            "prefill left": accounting.prefill_flops(
                config, each, tokens, True, True, tail_only=True
            ),
            "decode left": accounting.decode_flops(config, each, tokens, True),
            "cache left": accounting.kv_bytes_per_token(config, each, job.model.dtype),
        }
        for each in (plan, None)
    )
    return {name: left[name] / dense[name] for name in left} | {"counted at": tokens}


def passkeys(job: Job, tokens: int, depths: int, keys: int) -> Text:
    """Texts of about ``tokens`` tokens that name a key, ``keys`` at each depth, and ask for it: it
    is predicted.
    """
    filler = FILLER * tokens
    per_token = len(filler) / len(
        job.tokenizer(filler, add_special_tokens=False, verbose=False).input_ids
    )
    room, texts, windows = int(tokens * per_token), [], []
    for depth, number in itertools.product(range(depths), range(keys)):
        first = 2 * (number + depth) % len(KEY)
        key = (KEY + KEY)[first : first + 4]
        place = room * depth // max(1, depths - 1)
        told = f"{filler[:place]}\nThe pass key is {key}. Remember it.\n{filler[: room - place]}"
        asked = f"Find the pass key in this text.\n{told}\nWhat is the pass key? The pass key is"
        before, whole = (job.tokenizer(text).input_ids for text in (asked, f"{asked} {key}"))
        texts.append(f"{asked} {key}")
        windows.append([Window(torch.tensor(whole), len(whole) - len(before))])
    return Text(Corpus("passkey", HELD_OUT, "embedded", tuple(texts)), windows, job)
