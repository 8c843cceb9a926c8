"""The HTML book: whole, offline, and rid of what only matters while a notebook runs."""

import io
import re
import shutil
import subprocess
from contextlib import redirect_stderr
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest

from harp_lib import book, paths

ROOT = Path(__file__).resolve().parents[1]
EXECUTED = sorted((ROOT / "notebooks" / "executed" / "mini").glob("*.ipynb"))
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
NETWORK = re.compile(r"^\s*(https?:)?//")
CALLS = re.compile(r"""(fetch|import|importScripts|open|url|@import)\s*\(?\s*["'`]?\s*(https?:)?//""")
LOADS = {"link": "href", "object": "data"} | dict.fromkeys(("script", "img", "iframe", "source", "video"), "src")


class Page(HTMLParser):
    """What a page loads, links to, is linked by, and runs."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.loads, self.links, self.anchors, self.programs = [], [], set(), ""
        self._in_script = False
        self.text = file.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self._in_script = tag == "script"
        self.anchors.add(attributes.get("id"))
        if attributes.get(LOADS.get(tag)):
            self.loads.append(attributes[LOADS[tag]])
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])

    def handle_endtag(self, tag):
        self._in_script = False

    def handle_data(self, data):
        if self._in_script:
            self.programs += data


def build(root: Path) -> tuple[Path, str]:
    """Build the book of a checkout; its front page, and what was said on stderr."""
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()) as said:
        patch.setattr(paths, "ROOT", root)
        patch.setattr(paths, "NOTEBOOKS", root / "notebooks")
        return book.build("mini"), said.getvalue()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The book of the committed executed notebooks (some seconds), what was said, and its pages."""
    root = tmp_path_factory.mktemp("a checkout")
    for entry in ROOT.iterdir():
        if entry.name not in ("book", ".git", ".venv"):
            (root / entry.name).symlink_to(entry)
    front, said = build(root)
    # the theme leaves templates of its own among the static files
    pages = {file: Page(file) for file in front.parent.rglob("*.html") if "_static" not in file.parts}
    return front.parent, said, pages


@pytest.fixture
def checkout(tmp_path):
    """A small checkout with one executed notebook."""
    (tmp_path / "README.md").write_text("# Front\n\n[the notebook](notebooks/01_one.ipynb)\n", encoding="utf-8")
    folder = tmp_path / "notebooks" / "executed" / "mini"
    folder.mkdir(parents=True)
    cells = [nbformat.v4.new_markdown_cell("# One\n\n$x^2$"), nbformat.v4.new_code_cell("print(1)")]
    python = {"language_info": {"name": "python", "pygments_lexer": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=python), folder / "01_one.ipynb")
    return tmp_path


def test_has_a_page_for_the_readme_and_each_notebook_in_order(built):
    folder, said, pages = built
    assert said == ""
    front = pages[folder / "index.html"]
    names = [f"notebooks/{notebook.stem}.html" for notebook in EXECUTED]
    beside = [link for link in front.links if link.startswith("notebooks/") and "#" not in link]
    assert list(dict.fromkeys(beside)) == names
    assert all(folder / name in pages for name in names)


def test_no_page_loads_anything_from_the_network(built):
    folder, _, pages = built
    for file, page in pages.items():
        assert not list(filter(NETWORK.match, page.loads)), file
        assert "://" not in page.programs, file
    for file in folder.rglob("*.[cj]s*"):
        assert not CALLS.search(file.read_text(encoding="utf-8")), file


def test_formulas_are_drawn_by_the_books_own_mathjax(built):
    _, _, pages = built
    with_formulas = {file: page for file, page in pages.items() if 'class="math' in page.text}
    assert with_formulas
    for file, page in with_formulas.items():
        script = next(name for name in page.loads if book._MATHJAX in name)
        assert (file.parent / urlsplit(script).path).stat().st_size > 1_000_000


def test_links_inside_the_book_lead_somewhere(built):
    folder, _, pages = built
    for file, page in pages.items():
        for link in page.loads + page.links:
            place = urlsplit(link)
            if place.scheme:
                continue
            target = (file.parent / unquote(place.path)).resolve() if place.path else file
            assert target.is_file(), (file, link)
            assert target.is_relative_to(folder.resolve()), (file, link)
            if place.fragment and target in pages:
                assert unquote(place.fragment) in pages[target].anchors, (file, link)


def test_pages_are_for_readers(built):
    folder, _, pages = built
    for notebook in EXECUTED:
        page = pages[folder / "notebooks" / f"{notebook.stem}.html"]
        assert "%|" not in page.text  # a progress bar
        assert "jupyter.widget" not in page.text
        assert "IPython.core.display" not in page.text
        assert "$\\" not in page.text  # a formula in an output that was left as it was written
        assert page.text.count('<details class="admonition hide') == page.text.count('class="cell_input')
        assert len(re.findall(r"<img [^>]*_images/", page.text)) == page_pictures(notebook)


def page_pictures(notebook: Path) -> int:
    cells = nbformat.read(notebook, as_version=4).cells
    return sum("image/png" in output.get("data", {}) for cell in cells for output in cell.get("outputs", []))


def test_refuses_a_profile_that_was_not_executed(checkout):
    shutil.rmtree(checkout / "notebooks" / "executed")
    with pytest.raises(FileNotFoundError, match=r"'mini' to make a book of: \./run_all\.sh --profile mini first"):
        build(checkout)
    assert not (checkout / "book").exists()


def test_links_go_to_pages_and_files_of_the_book(checkout):
    (checkout / "figures").mkdir()
    for name, text in {"a table.md": "| a |\n|---|\n| 1 |\n", "plot.svg": "<svg/>", "numbers.csv": "a\n1\n"}.items():
        (checkout / "figures" / name).write_text(text, encoding="utf-8")
    for name in ("executed/smoke/01_one.ipynb", "02_two.ipynb"):  # of another profile; not executed
        (checkout / "notebooks" / name).parent.mkdir(exist_ok=True)
        (checkout / "notebooks" / name).touch()
    (checkout / "README.md").write_text(
        "# Front\n\n[table](figures/a%20table.md) [all](figures) [rows](figures/numbers.csv) [there](#front)\n"
        "![plot](figures/plot.svg) [one](notebooks/executed/smoke/01_one.ipynb) [two](notebooks/02_two.ipynb)\n"
        "[web](https://example.org)\n",
        encoding="utf-8",
    )
    front, said = build(checkout)
    page = Page(front)
    words = dict(re.findall(r'<a [^>]*href="([^"]*)"[^>]*>(?:<[^>]*>)*(table|all|rows|there|one|two|web)<', page.text))
    rows = next(link for link, word in words.items() if word == "rows")
    assert said == ""
    assert words == {
        "figures/a%20table.html": "table",
        "notebooks/01_one.html": "one",
        "#front": "there",
        "https://example.org": "web",
        rows: "rows",
    }
    assert any(name.endswith("plot.svg") for name in page.loads)
    assert (front.parent / rows).read_text(encoding="utf-8") == "a\n1\n"
    assert "<h1>A table" in (front.parent / "figures" / "a table.html").read_text(encoding="utf-8")


def test_says_which_link_is_broken(checkout):
    (checkout / "README.md").write_text("# Front\n\n[gone](nowhere.md)\n", encoding="utf-8")
    assert "nowhere.md" in build(checkout)[1]


def test_an_interrupted_build_leaves_the_last_book_as_it_was(checkout, monkeypatch):
    front, _ = build(checkout)
    before = front.read_text(encoding="utf-8")
    (checkout / "README.md").write_text("# Changed\n", encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(book.Sphinx, "build", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build(checkout)
    assert front.read_text(encoding="utf-8") == before
    front, _ = build(checkout)
    assert "Changed" in front.read_text(encoding="utf-8")
    assert sorted(path.name for path in front.parents[1].iterdir() if path.is_dir()) == ["mini"]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on PATH")
def test_a_browser_shows_formulas_without_network(built, tmp_path):
    folder, _, _ = built
    page = folder / "notebooks" / "02_norm_change.html"
    quiet = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000", "--dump-dom", page.as_uri()]
    done = subprocess.run([BROWSER, *quiet, *offline], capture_output=True, text=True, timeout=120)
    drawn = re.findall(r'<mjx-container [^>]*jax="SVG"', done.stdout)
    assert len(drawn) == Page(page).text.count('class="math')
    assert "data-mjx-error" not in done.stdout
