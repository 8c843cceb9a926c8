"""The claims of the paper, judged by stored results.

A claim is data (``data/paper/claims.yaml``). Its test, which registers itself by name, yields
findings (:mod:`.layer_tests`, :mod:`.score_tests`, :mod:`.likelihood_tests`). A rule says what
follows (:mod:`.findings`), the judge applies it to every claim and model (:mod:`.judging`), and
words are made of it last (:mod:`.words`).
"""

from harp_lib.report.claims import (  # noqa: F401 (their tests register themselves)
    layer_tests,
    likelihood_tests,
    score_tests,
)
from harp_lib.report.claims.judging import (
    counts,
    judge,
    load_claims,
    over_all,
    over_models,
    theorems,
    together,
)
from harp_lib.report.claims.registry import LIKELIHOOD_TESTS, TESTS
from harp_lib.report.claims.words import (
    counted,
    folded,
    headline,
    listed,
    marked,
    matrix,
    notebook_file,
    paper_map,
    show,
    source_file,
    worded,
)

__all__ = [
    "LIKELIHOOD_TESTS",
    "TESTS",
    "counted",
    "counts",
    "folded",
    "headline",
    "judge",
    "listed",
    "load_claims",
    "marked",
    "matrix",
    "notebook_file",
    "over_all",
    "over_models",
    "paper_map",
    "show",
    "source_file",
    "theorems",
    "together",
    "worded",
]
