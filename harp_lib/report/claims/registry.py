"""The tests of claims, which register themselves by name.

A test takes a :class:`harp_lib.report.data.Source`, which is what a store holds of one model, and
the arguments that ``data/paper/claims.yaml`` gives it. It yields findings
(:class:`harp_lib.report.claims.findings.Finding`): what has to hold, piece by piece.
"""

from collections.abc import Callable, Iterator

from harp_lib.report.claims.findings import Finding

Test = Callable[..., Iterator[Finding]]

TESTS: dict[str, Test] = {}  # by the name that claims.yaml calls them
LIKELIHOOD_TESTS: dict[str, Test] = {}  # by the name of the test that they stand beside


def claim_test(test: Test) -> Test:
    """Register the test of a claim by its name."""
    TESTS[test.__name__] = test
    return test


def likelihood_test(test: Test) -> Test:
    """Register a test by likelihood, which has the name of the test of scores beside it."""
    LIKELIHOOD_TESTS[test.__name__] = test
    return test
