"""What the executed notebooks say in words stands in their outputs."""

import re

import nbformat
import pytest
from helpers import CHECKOUT

EXECUTED = CHECKOUT / "notebooks" / "executed" / "small"
PAGES = sorted(EXECUTED.glob("*.ipynb"))
FOUND = "**What we found"
ANSWER = "**The answer"
NAMES = re.compile(r"α = [\d.]+|(?<![\d.])95 %|`[^`]*`|\]\([^)]*\)|\[\d\d\]|Qwen [\d.]+B")
NUMBER = re.compile(r"(?<![\w.,-])[+−-]?\d[\d,]*(?:\.\d+)?\w*")
INTERVAL = re.compile(r"\[[^\]]*\]")
MOST_NUMBERS = 4
MOST_SENTENCES = 3


def numbers_in(text):
    """Numbers as they are written, without those that are part of a name."""
    found = []
    for word in NUMBER.findall(NAMES.sub(" ", text)):
        plain = word.replace(",", "").replace("−", "-").rstrip(".")
        if re.fullmatch(r"[+-]?\d+(\.\d+)?", plain):
            found.append(plain)
    return found


def printed_by(cell):
    """All text of a code cell's outputs."""
    texts = []
    for output in cell.get("outputs", []):
        texts.append(output.get("text", ""))
        data = output.get("data", {})
        texts += [data.get("text/plain", ""), data.get("text/markdown", "")]
    return "\n".join(texts)


def stands_in(number, outputs):
    """Whether a number of the prose is a whole number of the outputs, rounded as it is written."""
    decimals = len(number.partition(".")[2])
    value = abs(float(number))
    for printed in numbers_in(outputs):
        exact_enough = len(printed.partition(".")[2]) >= decimals
        if exact_enough and abs(round(abs(float(printed)), decimals) - value) < 1e-9:
            return True
    return False


def sections(notebook):
    """Pairs of the markdown and of the outputs of each section of a notebook."""
    prose = [""]
    outputs = [""]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            outputs[-1] += printed_by(cell) + "\n"
            continue
        for part in re.split(r"^(?=## )", cell.source, flags=re.MULTILINE):
            if part.startswith("## "):
                prose.append("")
                outputs.append("")
            prose[-1] += part + "\n\n"
    return list(zip(prose, outputs, strict=True))


def paragraphs(prose, beginning):
    return [part for part in prose.split("\n\n") if part.startswith(beginning)]


def unsupported(notebook):
    """Numbers of findings that stand in no output of their section; of the answer, in none."""
    missing = []
    everything = "\n".join(outputs for _, outputs in sections(notebook))
    for prose, outputs in sections(notebook):
        for beginning, where in ((FOUND, outputs), (ANSWER, everything)):
            for paragraph in paragraphs(prose, beginning):
                for number in numbers_in(paragraph):
                    if not stands_in(number, where):
                        missing.append((number, paragraph[:80]))
    return missing


def too_long(notebook):
    """Findings with more numbers or sentences than a reader takes in at once."""
    found = []
    for prose, _ in sections(notebook):
        for paragraph in paragraphs(prose, FOUND) + paragraphs(prose, ANSWER):
            text = paragraph.split("**", 2)[2]
            numbers = len(numbers_in(INTERVAL.sub("", text)))
            sentences = len(re.findall(r"[.?!](?=\s|$)", text.strip()))
            if numbers > MOST_NUMBERS or sentences > MOST_SENTENCES:
                found.append((numbers, sentences, paragraph[:80]))
    return found


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.stem)
def test_findings_are_short_and_each_number_stands_in_an_output(file):
    notebook = nbformat.read(file, 4)
    assert unsupported(notebook) == []
    assert too_long(notebook) == []


def printing(text):
    """A cell of code with its output."""
    output = nbformat.v4.new_output("stream", text=text)
    return nbformat.v4.new_code_cell("…", outputs=[output])


@pytest.mark.parametrize(
    ("finding", "missing"),
    [
        ("It is 2.9 % [−4.2, 10.5] on Qwen 0.5B.", []),
        ("It is 3 %, with α = 1.", []),
        ("It is 2.8 %.", ["2.8"]),
        ("It is 2.95 %.", ["2.95"]),  # more digits than were printed
        ("It is 0.5 %.", ["0.5"]),  # a part of 10.5
        ("It is 1,024 tokens, 95 % of WikiText-2 ([03](03_alpha.ipynb)).", []),
        ("Elsewhere it is 77.", ["77"]),
    ],
)
def test_a_number_without_an_output_is_found(finding, missing):
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("# Title"),
            printing("77"),
            nbformat.v4.new_markdown_cell("## One"),
            printing("change 2.9 [-4.2, 10.5]\n1024 tokens"),
            nbformat.v4.new_markdown_cell(f"**What we found.** {finding}\n\n## Two"),
        ]
    )
    assert [number for number, _ in unsupported(notebook)] == missing
