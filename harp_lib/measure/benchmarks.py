"""The old name of :mod:`harp_lib.measure.evaluation`, until nobody imports it."""

import sys

from harp_lib.measure import evaluation

sys.modules[__name__] = evaluation
evaluation.GENERATION_TASKS = tuple(t for t in evaluation.BENCHMARKS.values() if t.kind == evaluation.GENERATION)
evaluation.DISCRIMINATIVE_TASKS = tuple(t for t in evaluation.BENCHMARKS.values() if t.choices)
