"""Two methods compared on the same questions, documents or rounds: what they share cancels."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from harp_lib.report.intervals import Interval, log_change, paired_means, paired_scores, time_ratio

QUESTION = ["task", "subtask", "question"]  # together they name a question
DOCUMENT = ["document"]
ROUND = ["repetition"]  # in which variants are timed in turn
SCORE = "score"
NLL = "nll"
SECONDS = "seconds"


def paired(
    frame: pd.DataFrame, by: list[str], methods: Iterable[tuple[str, str]], measure: str
) -> pd.DataFrame:
    """Compare pairs of methods within groups of rows, question by question.

    Parameters
    ----------
    frame : DataFrame
        A row for each method and question, with the columns method, task, subtask, question and
        the measure; for each method and document, with method, document, nll and tokens; or for
        each method and round of timing, with method, repetition and seconds.
    by : list of str
        Columns: what each group has in common, model or model and task for instance. The tasks of
        a group have equal weight.
    methods : iterable of (str, str)
        Which methods are compared: the first with the second. A pair is left out where a group has
        no question that both were asked.
    measure : str
        A column. ``score`` is compared in points, see :func:`.paired_scores`; ``nll`` as a ratio of
        perplexities, see :func:`.log_change`; ``seconds`` as a ratio of times, see
        :func:`.time_ratio`; and any other one by its mean, see :func:`.paired_means`.

    Returns
    -------
    DataFrame
        For each group and pair: the columns of ``by``, method, against, value, low, high, n, and p.
        ``value`` is the first method's measure less the second's, or with ``nll`` and ``seconds``
        the first's perplexity or time divided by the second's.
    """
    pairs = list(methods)
    items = {NLL: DOCUMENT, SECONDS: ROUND}.get(measure, QUESTION)
    frame = frame.dropna(subset=measure)
    _refuse_doubles(frame, [*dict.fromkeys([*by, *items, "method"])])
    rows = []
    for group, part in frame.groupby(by, sort=False, observed=True):
        about = dict(zip(by, group, strict=True))
        table = part.pivot_table(measure, items, "method", sort=False, observed=True)
        for method, against in pairs:
            if {method, against} <= set(table):
                both = table[[method, against]].dropna()
                if len(both):
                    effect = _difference(both, part, measure)
                    compared = {"method": method, "against": against}
                    rows.append(about | compared | effect.as_row() | {"p": effect.p})
    columns = [*by, "method", "against", "value", "low", "high", "n", "p"]
    return pd.DataFrame(rows, columns=columns)


def _refuse_doubles(frame: pd.DataFrame, keys: list[str]) -> None:
    """Raise if a method has two values of a question in one group."""
    doubles = frame[frame.duplicated(keys)]
    if len(doubles):
        first = ", ".join(f"{key} {doubles.iloc[0][key]}" for key in keys)
        raise ValueError(f"two rows have {first}; keep one of them, or group by what differs")


def _difference(both: pd.DataFrame, part: pd.DataFrame, measure: str) -> Interval:
    """First column less second, on average of the tasks."""
    if measure == NLL:
        tokens = part.groupby("document")["tokens"].first()[both.index]
        first, second = both.to_numpy().T  # (documents,) each
        return log_change(second, first, tokens).mapped(np.exp)
    if measure == SECONDS:
        first, second = both.to_numpy().T  # (rounds,) each
        return time_ratio(second, first)
    tasks = both.groupby(level="task", sort=False, observed=True)
    pairs = [table.to_numpy().T for _, table in tasks]  # (2, questions) each
    if measure == SCORE:
        return paired_scores(pairs).times(100)
    return paired_means(pairs)
