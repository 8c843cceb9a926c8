"""The HTML book of the committed notebooks, as ``./run_all.sh book`` makes it."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
from helpers import CHECKOUT

import harp_lib

for package in ("myst_nb", "numpydoc", "sphinx_book_theme"):
    pytest.importorskip(package)

pytestmark = pytest.mark.slow

NAMES_OF_ROOMS = (
    "harp_lib.accounting.removed_fraction",
    "harp_lib.theory.distance_to_consensus",
    "harp_lib.theory.norm_ratio",
    "harp_lib.theory.preserves_norm",
    "harp_lib.theory.similarity",
)
"""Public names that are imported from a room; the others are exported by harp_lib itself."""


class Page(HTMLParser):
    """The anchors of a page, the addresses it links to, and those it loads."""

    def __init__(self, text):
        super().__init__()
        self.anchors = set()
        self.linked = []
        self.loaded = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.add(attributes.get("id"))
        if tag == "a" and attributes.get("href"):
            self.linked.append(attributes["href"])
        if tag in ("img", "script", "iframe") and attributes.get("src"):
            self.loaded.append(attributes["src"])
        if tag == "link" and "stylesheet" in attributes.get("rel", ""):
            self.loaded.append(attributes["href"])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the book of small, and what the command printed."""
    root = tmp_path_factory.mktemp("checkout")
    for source in CHECKOUT.iterdir():
        if not source.name.startswith(".") and source.name != "book":
            (root / source.name).symlink_to(source)
    environment = {**os.environ, "HARP_ROOT": str(root), "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-P", "-m", "harp_lib.cli", "book"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return root / "book" / "small", done.stdout + done.stderr


@pytest.fixture(scope="module")
def pages(built):
    """Every page by its file, without the theme's templates."""
    folder, _ = built
    files = [file for file in folder.rglob("*.html") if "_static" not in file.parts]
    return {file: Page(file.read_text(encoding="utf-8")) for file in files}


def test_the_book_is_made_without_a_warning(built):
    folder, printed = built
    assert "WARNING" not in printed
    assert "open it in a browser: book/small/index.html" in printed
    assert (folder / "index.html").read_text() == (folder / "README.html").read_text()
    assert len([*folder.glob("notebooks/executed/small/*.html")]) == 10


def test_every_link_leads_somewhere(pages):
    broken = []
    for file, page in pages.items():
        for address in page.linked + page.loaded:
            parts = urlsplit(address)
            if parts.scheme:
                continue
            target = file
            if parts.path:
                target = (file.parent / unquote(parts.path)).resolve()
            anchor = unquote(parts.fragment)
            is_anchor_missing = target in pages and anchor not in {"", *pages[target].anchors}
            if not target.exists() or is_anchor_missing:
                broken.append((file.name, address))
    assert not broken


def test_nothing_is_loaded_from_the_network(pages):
    for file, page in pages.items():
        assert not [address for address in page.loaded if urlsplit(address).netloc], file.name


def test_the_front_page_leads_to_pages_of_the_book(built, pages):
    folder, _ = built
    front = pages[folder / "index.html"]
    assert any(re.fullmatch(r"notebooks/executed/small/03_\w+\.html", a) for a in front.linked)
    assert "docs/library.html" in front.linked
    assert "source/LICENSE.html" in front.linked


def test_every_public_name_is_in_the_reference(built, pages):
    folder, _ = built
    reference = {
        anchor
        for file, page in pages.items()
        if file.is_relative_to(folder / "docs" / "api")
        for anchor in page.anchors
    }
    names = {f"harp_lib.{name}" for name in harp_lib.__all__}
    assert {*names, *NAMES_OF_ROOMS} <= reference


def test_a_name_leads_to_its_line(built, pages):
    folder, _ = built
    reference = pages[folder / "docs" / "api" / "methods.html"]
    (address,) = [a for a in reference.linked if "methods/fit_alpha.py" in a]
    line = int(address.rpartition("#line-")[2])
    source = (CHECKOUT / "harp_lib" / "methods" / "fit_alpha.py").read_text(encoding="utf-8")
    assert "def fit_alphas" in "\n".join(source.splitlines()[line - 1 : line + 1])


def test_parameters_are_folded(built):
    folder, _ = built
    for file in folder.glob("notebooks/executed/small/*.html"):
        text = file.read_text(encoding="utf-8")
        assert "Parameters of this run" in text, file.name
