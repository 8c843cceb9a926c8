"""Sphinx extension: the book's table of contents in parts, and the page that a server opens."""

import json
import os
import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ConfigError

PROFILE = os.environ.get("HARP_BOOK", "small")
EXECUTED = f"notebooks/executed/{PROFILE}"
TABLES = f"figures/{PROFILE}/tables"
LIST_OF_TABLES = "notebooks/book/tables"
PROMPTS = {"parameters": "Parameters", "injected-parameters": "Parameters of this run"}
"""Cells that are folded in every notebook, by tag, and what stands on the fold."""


def parts(source_folder: Path) -> dict[str, list[str]]:
    """The pages of each part, without the suffix of their files."""
    notebooks = {}
    for path in sorted(source_folder.glob(f"{EXECUTED}/[0-9][0-9]_*.ipynb")):
        if ".unfinished" not in path.name:
            notebooks[path.name[:2]] = f"{EXECUTED}/{path.stem}"
    if not notebooks:
        raise ConfigError(
            f"no executed notebook of the profile {PROFILE!r}: "
            f"./run_all.sh --profile {PROFILE} first"
        )

    def numbered(first: str, last: str) -> list[str]:
        return [page for number, page in notebooks.items() if first <= number <= last]

    return {
        "Start": ["Front page <self>", *numbered("00", "00"), "docs/commands"],
        "The method": numbered("01", "03"),
        "The evidence": [*numbered("04", "08"), "docs/claims", LIST_OF_TABLES, "docs/protocol"],
        "Beyond the paper": numbered("09", "99"),
        "Your own models": ["docs/library", "docs/full-size"],
        "Reference": ["docs/api/index", "CONTRIBUTING", "data/mini/README"],
    }


def toctree(pages: list[str], **options: str) -> str:
    """A table of contents in MyST markdown."""
    lines = [f":{option}: {value}" for option, value in options.items()]
    return "\n".join(["", "```{toctree}", *lines, "", *pages, "```", ""])


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Give the front page the book's contents, and the list of tables its links."""
    if page == app.config.root_doc:
        for caption, pages in parts(Path(app.srcdir)).items():
            present = [name for name in pages if name in app.env.found_docs or "<" in name]
            source[0] += toctree(present, hidden="", caption=caption)
    if page == LIST_OF_TABLES:
        names = [name for name in sorted(app.env.found_docs) if name.startswith(TABLES)]
        source[0] += toctree([f"/{name}" for name in names])


def add_heading(app: Sphinx, page: str, source: list[str]) -> None:
    """Tables are files without a heading, and a page of the book needs one."""
    if page.startswith(TABLES):
        name = Path(page).name.replace("_", " ")
        source[0] = f"# Table: {name}\n\n{source[0]}"


def link_to_this_profile(app: Sphinx, page: str, source: list[str]) -> None:
    """The front page and the docs link to notebooks of small, which another book does not have."""
    for folder in ("figures", "notebooks/executed"):
        source[0] = source[0].replace(f"{folder}/small/", f"{folder}/{PROFILE}/")


def unlink_folders(app: Sphinx, page: str, source: list[str]) -> None:
    """A link to a folder becomes its text, because a folder has no page."""
    here = Path(app.env.doc2path(page)).parent

    def text_or_link(link: re.Match) -> str:
        text, target = link.groups()
        return text if (here / target).is_dir() else link.group()

    if not page.startswith(EXECUTED):
        source[0] = re.sub(r"\[([^][]+)\]\(([^()#]+)\)", text_or_link, source[0])


def fold_parameters(app: Sphinx, page: str, source: list[str]) -> None:
    """Hide the code of the cells that hold a notebook's parameters."""
    if not page.startswith(EXECUTED):
        return
    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        tags = cell["metadata"].setdefault("tags", [])
        for tag, prompt in PROMPTS.items():
            if tag in tags:
                tags.append("hide-input")
                cell["metadata"]["mystnb"] = {"code_prompt_show": prompt}
    source[0] = json.dumps(notebook)


def open_on_front_page(app: Sphinx, exception: Exception | None) -> None:
    """Servers open a page of this name."""
    if exception is None:
        index = Path(app.outdir, "index.html")
        shutil.copyfile(Path(app.outdir, f"{app.config.root_doc}.html"), index)
        print(f"open it in a browser: {os.path.relpath(index)}")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    changes = (add_contents, add_heading, link_to_this_profile, unlink_folders, fold_parameters)
    for change in changes:
        app.connect("source-read", change)
    app.connect("build-finished", open_on_front_page)
