"""What the test of a claim finds, and the rule that says what follows."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from harp_lib.report.comparisons import Interval
from harp_lib.report.data import Missing

NOTHING = Interval(np.nan, np.nan, np.nan)


class Outcome(StrEnum):
    """What follows for a claim."""

    REPRODUCED = "reproduced"
    PARTLY = "partly"
    NOT = "not reproduced"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not run"


WEAKEST_FIRST = [
    Outcome.NOT,
    Outcome.NOT_RUN,
    Outcome.INCONCLUSIVE,
    Outcome.PARTLY,
    Outcome.REPRODUCED,
]


class Finding(NamedTuple):
    """One number that decides: it speaks for a claim above ``goal`` (below it with ``less``)."""

    interval: Interval
    unit: str = "points"
    about: str = ""
    goal: float = 0.0
    less: bool = False
    inclusive: bool = False  # the goal itself is enough: for what is counted without error
    reason: str = ""  # why it cannot decide
    # The same number in the paper: for this model, or for each of the paper's models.
    paper: tuple[float, ...] = ()
    rival: str = ""  # the name of the plan that it is compared with, where there are several

    @property
    def outcome(self) -> Outcome:
        """What follows: the whole interval has to be on one side of the goal."""
        if self.reason:
            is_missing = self.reason.startswith("needs")
            return Outcome.NOT_RUN if is_missing else Outcome.INCONCLUSIVE
        interval = self.interval
        goal = self.goal
        if self.less:
            interval = 0 - interval
            goal = -goal
        if interval.low > goal:
            return Outcome.REPRODUCED
        if self.inclusive and interval.low == goal:
            return Outcome.REPRODUCED
        if interval.high < goal:
            return Outcome.NOT
        return Outcome.INCONCLUSIVE

    @property
    def threshold(self) -> str:
        """What the number has to be, in words; ``{}`` stands for the goal."""
        if self.inclusive:
            return "at most {}" if self.less else "at least {}"
        return "below {}" if self.less else "above {}"

    @property
    def support(self) -> float:
        """The value, with the sign that makes more of it speak for the claim."""
        return -self.interval.value if self.less else self.interval.value


def weakest(findings: Sequence[Finding], needs: str = "") -> Finding:
    """The finding that decides where all of them have to hold.

    Raises
    ------
    Missing
        If there are no findings; the message says what it ``needs``.
    """
    if not findings:
        raise Missing(f"needs {needs}")

    def strength(finding: Finding) -> tuple[int, float]:
        return WEAKEST_FIRST.index(finding.outcome), finding.support

    return min(findings, key=strength)
