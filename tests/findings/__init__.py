"""Findings of README, docs and notebooks: a file for each page.

A finding is a sentence with ``{}`` in the place of its numbers, and a function that reads these
numbers from ``data/reference/small``. The page has to hold the sentence with exactly these numbers.
To add one, write the sentence on the page, then add it to the page's file here under ``@finding``.
The function also asserts what the sentence says in words.
"""

from findings import front_page, notebook_00, notebook_01, notebook_03, notebook_04, results_page
from findings.stored import FINDINGS

__all__ = [
    "FINDINGS",
    "front_page",
    "notebook_00",
    "notebook_01",
    "notebook_03",
    "notebook_04",
    "results_page",
]
