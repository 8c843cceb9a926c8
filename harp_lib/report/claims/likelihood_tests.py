"""The second outcome of claims about scores: the same comparison by likelihood of right answers.

The paper claims accuracy, so accuracy sets the outcome of a claim. Likelihood moves with every
question and often decides where accuracy cannot; its outcome stands beside the first one. A claim
that compares generation with discriminative tasks has none, because their likelihoods have
different units.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from harp_lib.evaluation.benchmarks import ALL_BENCHMARKS
from harp_lib.report.claims.findings import Finding
from harp_lib.report.claims.registry import likelihood_test
from harp_lib.report.claims.score_tests import closest, named_in, rivals_of
from harp_lib.report.comparisons import DRAWS, Interval, paired_mean_difference
from harp_lib.report.data import Missing, Source
from harp_lib.report.right_answers import measure_of, paired, right_answers


def answers_of(
    source: Source, methods: Sequence[str], tasks: Sequence[str]
) -> dict[str, pd.DataFrame]:
    """The measure of each question by task, question × method; more is better in all of them.

    Tasks that a method lacks are left out. Raises Missing if no task is left.
    """
    answers = right_answers(source.profile, tasks, source.read)
    answers = answers[(answers["model"] == source.model) & answers["method"].isin(methods)]
    by_task = {}
    for task in tasks:
        of_task = answers[answers["task"] == task]
        if set(of_task["method"]) == set(methods):
            by_task[task] = measure_of(task).sign * paired(of_task, task, methods)
    if not by_task:
        raise Missing(f"needs likelihoods of {source.store}")
    return by_task


@likelihood_test
def score_lead(source, left, right, tasks, each=False, on_par=()):
    """How much more likely ``left`` finds the right answer than the closest rival.

    It is on average over the tasks, or on ``each`` of them.
    """
    rivals = rivals_of(source, right)
    answers = answers_of(source, [left, *rivals], named_in(tasks))
    if each:
        for task in answers:
            decides = _closest_lead(answers, [task], left, rivals)
            about = f"against {decides.rival}, {ALL_BENCHMARKS[task].title}"
            yield decides._replace(about=about)
    else:
        decides = _closest_lead(answers, list(answers), left, rivals)
        yield decides._replace(about=f"against {decides.rival}")


def _closest_lead(
    answers: dict[str, pd.DataFrame], tasks: list[str], left: str, rivals: dict[str, str]
) -> Finding:
    """The lead over the rival that decides, on average over some tasks."""
    unit = measure_of(tasks[0]).unit
    leads = []
    for rival, name in rivals.items():
        pairs = [(answers[task][left], answers[task][rival]) for task in tasks]
        leads.append(Finding(paired_mean_difference(pairs), unit, rival=name))
    return closest(leads)


@likelihood_test
def ahead_of_all(source, left, right):
    """Share of the benchmarks on which ``left`` alone is ahead, by a bootstrap over questions.

    It has to be ahead on most of them.
    """
    rivals = list(rivals_of(source, right))
    by_task = answers_of(source, [left, *rivals], named_in("longbench"))
    random = np.random.default_rng(0)
    is_ahead = []  # of each task: first as measured, then in each draw
    for answers in by_task.values():
        values = answers.to_numpy()  # (questions, methods)
        places = random.integers(len(values), size=(DRAWS, len(values)))
        drawn = values[places].mean(axis=1)  # (DRAWS, methods)
        means = np.concatenate([values.mean(axis=0)[None], drawn])  # (1 + DRAWS, methods)
        is_ahead.append(means[:, 0] > means[:, 1:].max(axis=1))
    shares = np.mean(is_ahead, axis=0)  # (1 + DRAWS,)
    low, high = np.percentile(shares[1:], (2.5, 97.5), method="inverted_cdf")
    number = sum(len(answers) for answers in by_task.values())
    interval = Interval(shares[0], low, high, number)
    yield Finding(interval, "share", f"of {len(by_task)} benchmarks", goal=0.5)
