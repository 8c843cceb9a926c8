"""Sphinx's configuration of ``./run_all.sh book``: the front page and executed notebooks, offline.

The source folder is the checkout, so that links stay what they are. Nothing is executed, and no
page loads anything from the network: the theme brings its fonts, and MathJax comes out of the wheel
of sphinx-mathjax-offline.
"""

import os
from importlib import resources
from pathlib import Path

from sphinx.errors import ConfigError

PROFILE = os.environ.get("HARP_BOOK", "mini")
EXECUTED = f"notebooks/executed/{PROFILE}"

html_title = f"HARP, reproduced · {PROFILE}"
project = "HARP, reproduced"
author = "The HARP companion authors"
extensions = ["myst_nb", "sphinx.ext.mathjax"]
root_doc = "README"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "data/mini/README.md",
    "docs/*.md",
    f"figures/{PROFILE}/tables/*.md",
    f"{EXECUTED}/[0-9][0-9]_*.ipynb",
]
exclude_patterns = ["**/*.unfinished.ipynb"]
suppress_warnings = ["myst.header", "toc.not_included"]
if PROFILE != "mini":
    suppress_warnings.append("myst.xref_missing")  # the front page links to mini's notebooks

html_theme = "sphinx_book_theme"
html_theme_options = {
    "home_page_in_toc": True,
    "navbar_persistent": [],
    "use_download_button": False,
}
MATHJAX = resources.files("sphinx-mathjax-offline") / "static" / "mathjax" / "tex-svg-full.js"
html_static_path = [str(MATHJAX)]
html_copy_source = False
html_show_copyright = False
html_use_index = False
# One file: its formulas are drawn, so that no browser's rules for fonts hold them up.
mathjax_path = "tex-svg-full.js"
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # they would come from the network
nb_output_stderr = "remove"  # progress bars
nb_render_markdown_format = "myst"


def table_of_contents(source_folder):
    """The markdown of the contents at the side: the executed notebooks and the other pages."""
    notebooks = []
    for path in sorted(Path(source_folder, EXECUTED).glob("[0-9][0-9]_*.ipynb")):
        if ".unfinished" not in path.name:
            notebooks.append(f"{EXECUTED}/{path.stem}")
    if not notebooks:
        raise ConfigError(
            f"no executed notebook of the profile {PROFILE!r}: "
            f"./run_all.sh --profile {PROFILE} first"
        )
    return toctree("Notebooks", notebooks) + toctree(
        "Beside them", ["docs/protocol", "CONTRIBUTING", "data/mini/README"]
    )


def toctree(caption, pages):
    """A hidden table of contents in MyST markdown."""
    names = "\n".join(pages)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{names}\n```\n"


def setup(app):
    """A table of contents at the side, and a page of the name that servers expect."""
    contents = table_of_contents(app.srcdir)

    def append_contents(_, page, source):
        if page == root_doc:
            source[0] += contents

    def forward_from_index(app, _):
        index = Path(app.outdir, "index.html")
        index.write_text('<meta http-equiv="refresh" content="0; url=README.html">')
        print(f"open it in a browser: {os.path.relpath(index)}")

    app.connect("source-read", append_contents)
    app.connect("build-finished", forward_from_index)
