"""The second outcome of claims about scores: the same comparison by the likelihood of the right
answer.

The paper claims accuracy, so accuracy sets the outcome of a claim. Likelihood moves with every
question and often decides where accuracy cannot; its outcome stands beside the first one. A claim
that compares generation with discriminative tasks has none, because their likelihoods have
different units.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS
from harp_lib.report.claims.score_tests import Finding, closest, named_in, rivals_of
from harp_lib.report.comparisons import DRAWS, Interval, paired_mean_difference
from harp_lib.report.data import Missing, Source
from harp_lib.report.right_answers import measure_of, paired, right_answers


def answers_of(
    source: Source, methods: Sequence[str], tasks: Sequence[str]
) -> dict[str, pd.DataFrame]:
    """By task, question × method, of the tasks that all methods have; more is better in each of
    them.
    """
    answers = right_answers(source.profile, tasks, source.read)
    answers = answers[(answers["model"] == source.model) & answers["method"].isin(methods)]
    found = {}
    for task in tasks:
        of_task = answers[answers["task"] == task]
        if set(of_task["method"]) == set(methods):
            found[task] = measure_of(task).sign * paired(of_task, task, methods)
    if not found:
        raise Missing(f"needs likelihoods of {source.store}")
    return found


def score_lead(source, left, right, tasks, each=False, on_par=()):
    """How much more likely ``left`` finds the right answer than the closest rival, on average or on
    each task.
    """
    rivals = rivals_of(source, right)
    asked = answers_of(source, [left, *rivals], named_in(tasks))
    for group in [[task] for task in asked] if each else [list(asked)]:
        leads = []
        for rival, name in rivals.items():
            lead = paired_mean_difference(
                [(asked[task][left], asked[task][rival]) for task in group]
            )
            leads.append(Finding(lead, measure_of(group[0]).unit, rival=name))
        decides = closest(leads)
        about = f"against {decides.rival}"
        if each:
            about += f", {ALL_BENCHMARKS[group[0]].title}"
        yield decides._replace(about=about)


def ahead_of_all(source, left, right):
    """In which share of the benchmarks ``left`` is alone ahead: of most it has to be. A bootstrap
    over questions.
    """
    rivals = list(rivals_of(source, right))
    asked = answers_of(source, [left, *rivals], named_in("longbench"))
    random = np.random.default_rng(0)
    ahead = []  # of each task: here, and in each draw
    for answers in asked.values():
        values = answers.to_numpy()  # (questions, methods)
        drawn = values[random.integers(len(values), size=(DRAWS, len(values)))].mean(
            axis=1
        )  # (draws, methods)
        means = np.concatenate([values.mean(axis=0)[None], drawn])
        ahead.append(means[:, 0] > means[:, 1:].max(axis=1))
    shares = np.mean(ahead, axis=0)
    low, high = np.percentile(shares[1:], (2.5, 97.5), method="inverted_cdf")
    number = sum(len(answers) for answers in asked.values())
    yield Finding(
        Interval(shares[0], low, high, number), "share", f"of {len(asked)} benchmarks", goal=0.5
    )


TESTS = {"score_lead": score_lead, "ahead_of_all": ahead_of_all}
"""By the name of the test of scores that they stand beside."""
