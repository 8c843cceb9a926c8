"""Time LLaMA3.1-8B's shape on a GPU, as the paper's figure "time" does, in less than 7 minutes.

    git clone --no-checkout --filter=blob:none URL harp && cd harp
    git sparse-checkout set harp_lib data/configs data/costs data/paper && git checkout
    pip install torch transformers pandas numpy safetensors filelock psutil
    PYTHONPATH=. python data/costs/paper_times.py

These four folders, and the files in ``data`` itself, are all that it reads: two megabytes. Weights
are random, in bfloat16, because no time depends on them. It times prefills, with the logits of the
last position alone, at the paper's seven lengths, and new tokens after two of them. The variants
are the dense model, HARP (the paper's eight layers and α), HARP with tail-only prefill, and the
model without as many groups, taken evenly. They take turns, so times are compared within a round. A
round before the first one warms up.

It prints a line for each length as it comes: the median of the dense model's seconds, and for each
variant the median of its times as multiples of the dense model's in the same round, with the
smallest and the largest. The cells are listed in ``data/results/small/efficiency``, for a model
whose name says the device. Packed into ``data/reference/small`` (``data/reference/pack.py``), they
are shown by notebook 08 under this name.

At the rate that the paper prints for one H100, ten rounds (six at 65,536 tokens) take about five
minutes. Where ``--minutes`` are too few, no length is left out, but there are fewer rounds, and
the lines say so. Medians of fewer than six rounds have no 95 % interval.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from statistics import median

import psutil
import torch

from harp_lib import config
from harp_lib.accounting import paper_configs, prefill_flops
from harp_lib.circumstances import device_name
from harp_lib.evaluation import timing
from harp_lib.experiments.context import Context
from harp_lib.experiments.efficiency import TIMED, Bench
from harp_lib.experiments.variants import FOLDED, make_variants, random_shape
from harp_lib.names import DENSE
from harp_lib.results import Cell, Result, Store, fill, rows_of

SHAPE = "LLaMA3.1-8B"
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)  # of the paper's figure
CONTEXTS = (1024, 32768)  # tokens in the cache before the first new one
NEW_TOKENS = 16
ROUNDS = 10
# As many has an order-statistic interval of 95 %, and the longest prefill.
FEWEST_ROUNDS = 6
FEW_FROM = 65536  # tokens
# Estimates, which the first rounds correct.
SECONDS_OF_NEW_TOKEN = 0.04
RATE_TOKENS = 8192  # of the prefill that tells how many operations a second the device does

Measurement = tuple[str, int]  # kind and tokens


class Rounds:
    """How many rounds of each measurement fit into the time.

    Each measurement has one round more, which warms up.

    Parameters
    ----------
    end : float
        When the last round shall be done, by ``time.monotonic``.
    seconds : dict
        Estimated seconds of one round of each measurement that is still to be done.
    """

    def __init__(self, end: float, seconds: dict[Measurement, float]) -> None:
        self.end = end
        self.seconds = seconds

    def of_next(self, measurement: Measurement, most: int) -> int:
        """Rounds of the next measurement, at most ``most``.

        More than ``FEWEST_ROUNDS`` take only what all others leave. If the time is too short for
        ``FEWEST_ROUNDS`` everywhere, all have equally few.
        """
        left = self.end - time.monotonic()
        needed = (FEWEST_ROUNDS + 1) * sum(self.seconds.values())
        if left < needed:
            return max(1, int((FEWEST_ROUNDS + 1) * left / needed) - 1)
        more = int((left - needed) / self.seconds[measurement])
        return min(most, FEWEST_ROUNDS + more)

    def correct(self, measurement: Measurement, measured: float) -> None:
        """Take a measurement off the list; scale the others of its kind by what it took."""
        factor = measured / self.seconds.pop(measurement)
        for kind, tokens in self.seconds:
            if kind == measurement[0]:
                self.seconds[kind, tokens] *= factor


def make_bench(name: str, layers: int) -> Bench:
    """The variants that are timed, and where their cells are stored."""
    model, plan = random_shape(SHAPE, layers, "bfloat16", seed=0)
    variants = make_variants(model, plan)
    variants.pop(FOLDED, None)
    profile = {"name": "small", "efficiency": {"decode": {"steps": NEW_TOKENS}}}
    inputs = {"model": name, "digest": f"random, {layers} layers", "dtype": str(model.dtype)}
    return Bench(variants, inputs, Context(profile, name, Store()))


def estimated_seconds(
    bench: Bench, lengths: Sequence[int], contexts: Sequence[int]
) -> dict[Measurement, float]:
    """Seconds of one round of each measurement, in the order in which they are done."""
    model = bench.variants[DENSE].model
    ids = torch.zeros(1, min(RATE_TOKENS, max(lengths)), dtype=torch.long, device=bench.device)
    timing.prefill(model, ids)
    seconds = timing.seconds_of(lambda: timing.prefill(model, ids), bench.device)
    rate = prefill_flops(bench.config, None, ids.shape[1], causal=True) / seconds

    estimates = {}
    for tokens in contexts:
        estimates["decode", tokens] = (
            len(timed(bench, "decode")) * bench.steps * SECONDS_OF_NEW_TOKEN
        )
    for tokens in lengths:
        flops = 0
        for _, plan, fold_output, tail_only in bench.variants.values():
            flops += prefill_flops(bench.config, plan, tokens, True, fold_output, tail_only)
        estimates["prefill", tokens] = flops / rate
    return estimates


def timed(bench: Bench, kind: str) -> list[str]:
    """The variants that one kind of measurement times."""
    return [name for name in bench.variants if name in TIMED[kind]]


def cells(bench: Bench, lengths: Sequence[int], rounds: Rounds) -> Iterator[Cell]:
    """What is counted, then each measurement, in as many rounds as the time allows."""
    yield bench.counted_cell(sorted(lengths))
    for kind, tokens in list(rounds.seconds):
        most = FEWEST_ROUNDS if tokens >= FEW_FROM else ROUNDS
        cell = bench.timed_cell(kind, tokens, rounds.of_next((kind, tokens), most))
        result = bench.context.store.get(cell)
        print(line((kind, tokens), result, most), flush=True)
        measured = rounds.seconds[kind, tokens]
        if "failed" not in result:
            measured = sum(median(seconds) for seconds in seconds_of_rounds(result).values())
        rounds.correct((kind, tokens), measured)
        yield cell


def line(measurement: Measurement, result: Result, most: int) -> str:
    """What is printed of one measurement."""
    kind, tokens = measurement
    begin = f"{kind} {tokens:,} tokens"
    if "failed" in result:
        return f"{begin}: {result['failed']}"
    seconds = seconds_of_rounds(result)
    dense = seconds[DENSE]
    texts = [f"dense {median(dense):.4f} s"]
    for name, of_variant in seconds.items():
        if name != DENSE:
            pairs = zip(of_variant, dense, strict=True)
            ratios = [of_round / of_dense for of_round, of_dense in pairs]
            texts.append(f"{name} {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    return f"{begin}, {len(dense)} of {most} rounds: {', '.join(texts)}"


def seconds_of_rounds(result: Result) -> dict[str, list[float]]:
    """Seconds of each round, by variant."""
    rows = rows_of(result)
    timed_rows = rows[rows["quantity"] == "seconds"]
    by_variant = timed_rows.groupby("variant", sort=False)["value"]
    return {name: values.tolist() for name, values in by_variant}


def main() -> None:
    layers_of_shape = paper_configs()[SHAPE].num_hidden_layers
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=6.5, help="from the start of the process")
    parser.add_argument("--layers", type=int, default=layers_of_shape, help="to try the script")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS)
    options = parser.parse_args()
    began = psutil.Process().create_time() - time.time() + time.monotonic()

    shape = SHAPE
    if options.layers != layers_of_shape:
        shape = f"{SHAPE}, {options.layers} of {layers_of_shape} layers"
    name = f"{shape} (random weights), {device_name()}"
    bench = make_bench(name, options.layers)
    seconds = estimated_seconds(bench, options.lengths, options.contexts)
    rounds = Rounds(began + 60 * options.minutes, seconds)
    print(f"{name}: ready after {time.monotonic() - began:.0f} s", flush=True)

    folder = config.RESULTS / "small" / "efficiency"
    fill(bench.context.store, folder, name, cells(bench, options.lengths, rounds))
    print(f"{time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
