"""Numbers of the findings in README, docs and notebooks are those of the stored cells of small.

The findings and where their numbers come from are in ``findings``, a file for each page.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Formatter

import nbformat
import pytest
from findings import FINDINGS
from helpers import CHECKOUT

from harp_lib import config, notebooks

AUTHORED = "**What we found"  # how a finding begins in a notebook
NAMES = (  # that hold digits
    r"SmolLM2( 135M)?|Gemma-3 270M|Qwen-Coder [\d.]+B|[Tt]he 1\.5B"
    r"|LLaMA3\.1-8B|Mistral-7B|Qwen2-7B|Gemma2-9B"
    r"|GSM8K|WikiText-2|2WikiMQA|Lemma \d|H100|α = [01]|\[\d\d\]\(\d\d_\w+\.ipynb\)"
    r"|[Nn]otebook \d\d"
)


@pytest.fixture(autouse=True)
def only_the_reference(tmp_path, monkeypatch):
    """What is committed decides, not what this checkout has computed."""
    monkeypatch.setattr(config, "RESULTS", tmp_path)


@cache
def text_of(page: str) -> str:
    """A page on one line."""
    if page.endswith(".md"):
        text = (CHECKOUT / page).read_text(encoding="utf-8")
    else:
        cells = nbformat.read(CHECKOUT / "notebooks" / page, as_version=4).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize(
    ("page", "sentence", "numbers"),
    FINDINGS,
    ids=[numbers.__name__ for _, _, numbers in FINDINGS],
)
def test_a_finding_has_the_stored_numbers(page, sentence, numbers):
    expected = sentence.format(*numbers())
    assert expected in text_of(page), f"by the stored cells {page} should say: {expected}"


def authored_paragraphs(file: Path) -> Iterator[str]:
    """What an author wrote in a notebook as a finding, each on one line."""
    for cell in nbformat.read(file, as_version=4).cells:
        if cell.cell_type == "markdown" and AUTHORED in cell.source:
            beginning = cell.source.index(AUTHORED)
            paragraph, _, _ = cell.source[beginning:].partition("\n#")
            yield re.sub(r"\s+", " ", paragraph)


def test_every_number_of_an_authored_paragraph_is_compared():
    """A paragraph that begins as a finding holds no number outside of the sentences above."""
    for file in sorted((CHECKOUT / "notebooks").glob("*.ipynb")):
        if file.stem in notebooks.opened():  # test_prose.py compares it with its own outputs
            continue
        compared = [pattern_of(sentence) for page, sentence, _ in FINDINGS if page == file.name]
        for paragraph in authored_paragraphs(file):
            rest = paragraph
            for pattern in compared:
                rest = re.sub(pattern, "", rest)
            rest = re.sub(NAMES, "", rest)
            message = f"{file.name}: no test compares the numbers of: {rest}"
            assert not re.search(r"\d", rest), message


def pattern_of(sentence: str) -> str:
    """A finding's sentence with whatever numbers; which ones are right is another test's."""
    pattern = ""
    for text, field, *_ in Formatter().parse(sentence):
        pattern += re.escape(text)
        if field is not None:
            pattern += r"\S+?(?: \S+?){0,5}?"  # a number, with its interval
    return pattern + r"(?![\d.,]*\d)"  # a number at the end is whole
