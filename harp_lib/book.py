"""The executed notebooks as an HTML book that is read offline, from a folder: Sphinx with Jupyter Book's parts.

Nothing is executed, and no page loads anything from the network: the theme brings its fonts, and MathJax comes out of
the wheel of sphinx-mathjax-offline.
"""

import os
import re
import shutil
import sys
from importlib import resources
from pathlib import Path
from urllib.parse import quote, unquote

import nbformat
from filelock import FileLock
from sphinx.application import Sphinx
from sphinx.util.console import color_terminal, nocolor
from sphinx.util.docutils import docutils_namespace, patch_docutils

from harp_lib import paths

_TITLE = "HARP, reproduced"
_MATHJAX = "tex-svg-full.js"  # one file: its formulas are drawn, so that no browser's rules for fonts hold them up
_STYLE = """\
div.cell details.hide.above-input { border: 0; box-shadow: none !important; margin: 0; }
div.cell details.hide.above-input > summary { background: none; }
div.cell details.hide.above-input > summary > p { font-size: 0.8em; font-weight: normal; opacity: 0.7; }
div.cell_output pre { white-space: pre-wrap; }
div.pst-scrollable-table-container { font-size: 0.85em; }
div.pst-scrollable-table-container :is(td, th) { min-width: 7em; }
div.pst-scrollable-table-container :is(td, th):first-child { min-width: 11em; }
"""
_CONFIG = {
    "project": _TITLE,
    "author": "The HARP companion authors",
    "extensions": ["myst_nb", "sphinx.ext.mathjax"],
    "html_theme": "sphinx_book_theme",
    "html_theme_options": {"home_page_in_toc": True, "navbar_persistent": [], "use_download_button": False},
    "html_copy_source": False,
    "html_css_files": ["book.css"],
    "html_show_copyright": False,
    "html_use_index": False,
    "mathjax_path": _MATHJAX,
    "myst_enable_extensions": ["amsmath", "dollarmath"],
    "myst_heading_anchors": 3,
    "nb_code_prompt_show": "code",
    "nb_code_prompt_hide": "hide code",
    "nb_execution_mode": "off",
    "nb_ipywidgets_js": {},  # they would come from the network
    "nb_render_markdown_format": "myst",
}
_WIDGET = "application/vnd.jupyter.widget-view+json"
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def build(profile: str) -> Path:
    """Build the book of a profile's executed notebooks in ``book/<profile>``, which it replaces when it is whole.

    Its front page is ``README.md``. What the front page and the notebooks link to is in the book: pages of Markdown
    as pages, other files as downloads.

    Returns
    -------
    Path
        The front page.

    Raises
    ------
    FileNotFoundError
        If no notebook of the profile was executed.
    """
    executed = paths.NOTEBOOKS / "executed" / profile
    notebooks = sorted(executed.glob("[0-9][0-9]_*.ipynb"))
    if not notebooks:
        raise FileNotFoundError(
            f"no executed notebook of the profile {profile!r} to make a book of: ./run_all.sh --profile {profile} first"
        )
    book = paths.ROOT / "book"
    book.mkdir(exist_ok=True)
    with FileLock(book / f".{profile}.lock"):
        work = book / f".{profile}"  # here a build that is interrupted leaves its halves
        shutil.rmtree(work, ignore_errors=True)
        _Sources(work / "sources", notebooks).write()
        _render(work / "sources", work / "html", work / "doctrees", f"{_TITLE} · {profile}")
        if (book / profile).exists():
            (book / profile).rename(work / "before")
        (work / "html").rename(book / profile)
        shutil.rmtree(work)
    return book / profile / "index.html"


def _render(sources: Path, html: Path, doctrees: Path, title: str) -> None:
    """Run Sphinx without its log; its warnings go to stderr."""
    mathjax = resources.files("sphinx-mathjax-offline") / "static" / "mathjax" / _MATHJAX
    config = _CONFIG | {"html_title": title, "html_static_path": [str(mathjax), str(sources / "book.css")]}
    if not color_terminal():
        nocolor()
    with patch_docutils(), docutils_namespace():
        Sphinx(sources, None, html, doctrees, "html", config, status=None, warning=sys.stderr).build()


class _Sources:
    """The pages as Sphinx reads them, placed as in the checkout, so that relative links stay what they are.

    ``placed`` says where in the book each file of the checkout is; ``pages`` are pages that somebody links to.
    """

    def __init__(self, folder: Path, notebooks: list[Path]) -> None:
        self.folder = folder
        self.notebooks = notebooks
        self.placed = {paths.ROOT / "README.md": "index.md"}
        self.placed |= {notebook: f"notebooks/{notebook.name}" for notebook in notebooks}
        self.pages: list[Path] = []

    def write(self) -> None:
        """Write all pages, what they link to, and the table of contents."""
        front = self._relink((paths.ROOT / "README.md").read_text(encoding="utf-8"), paths.ROOT / "README.md")
        for notebook in self.notebooks:
            self._write_notebook(notebook)
        for page in self.pages:  # grows on the way
            text = self._relink(page.read_text(encoding="utf-8"), page)
            title = page.stem.replace("_", " ").capitalize()
            heading = "" if re.search(r"^# ", text, re.MULTILINE) else f"# {title}\n\n"
            self._write(self.placed[page], heading + text)
        contents = _contents("Notebooks", [self.placed[notebook] for notebook in self.notebooks])
        contents += _contents("Beside them", [self.placed[page] for page in self.pages])
        self._write("index.md", front + contents)
        self._write("book.css", _STYLE)

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text, encoding="utf-8")

    def _write_notebook(self, path: Path) -> None:
        """A notebook for readers: code behind a click, no progress bars."""
        notebook = nbformat.read(path, as_version=4)
        notebook.metadata.pop("widgets", None)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = self._relink(cell.source, path)
                continue
            cell.metadata["tags"] = [*cell.metadata.get("tags", []), "hide-input"]
            cell.outputs = [output for output in cell.outputs if _is_shown(output)]
            for output in cell.outputs:
                if "text/markdown" in output.get("data", {}):
                    output.data["text/markdown"] = self._relink(output.data["text/markdown"], path)
        self._write(self.placed[path], nbformat.writes(notebook))

    def _relink(self, text: str, page: Path) -> str:
        """Point the links of a page into the book; what has no page, such as a folder, becomes its text."""

        def link(match: re.Match[str]) -> str:
            target = self._target(match["target"], page)
            return match["text"] if target is None else f"[{match['text']}]({target})"

        return _LINK.sub(link, text)

    def _target(self, target: str, page: Path) -> str | None:
        path, hash_, anchor = target.partition("#")
        file = Path(os.path.normpath(page.parent / unquote(path)))
        if not path or ":" in path or not (file.exists() and file.is_relative_to(paths.ROOT)):
            return target  # on the web, on the page itself, or broken, which Sphinx reports
        if file.suffix == ".ipynb":  # any profile's stands for this profile's
            file = self.notebooks[0].with_name(file.name)
        if file.is_dir() or (file.suffix == ".ipynb" and file not in self.placed):
            return None
        if file not in self.placed:
            self.placed[file] = file.relative_to(paths.ROOT).as_posix()
            if file.suffix == ".md":
                self.pages.append(file)
            else:
                (self.folder / self.placed[file]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, self.folder / self.placed[file])
        return quote(os.path.relpath(self.placed[file], Path(self.placed[page]).parent)) + hash_ + anchor


def _is_shown(output: nbformat.NotebookNode) -> bool:
    """Whether a reader needs an output: no progress bar, the only thing on stderr, and no text without words."""
    data = output.get("data", {})
    return output.get("name") != "stderr" and _WIDGET not in data and data.get("text/markdown") != ""


def _contents(caption: str, names: list[str]) -> str:
    """A part of the table of contents; Sphinx shows it at the side."""
    lines = "\n".join(name.rpartition(".")[0] for name in names)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n" if names else ""
