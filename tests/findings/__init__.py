"""Findings of README, docs and notebooks: a file for each page.

A finding is a sentence with ``{}`` in the place of its numbers, and a function that reads these
numbers from ``data/reference/small``. The page has to hold the sentence with exactly these numbers.
To add one, write the sentence on the page, then add it to the page's file here under ``@finding``.
The function also asserts what the sentence says in words.
"""

from importlib import import_module
from pkgutil import iter_modules

from findings.stored import FINDINGS

for page in iter_modules(__path__):
    import_module(f"findings.{page.name}")

__all__ = ["FINDINGS"]
