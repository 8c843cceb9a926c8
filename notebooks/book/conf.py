"""Sphinx's configuration of ``./run_all.sh book``: the front page and a profile's executed
notebooks, read offline.

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
    f"figures/{PROFILE}/tables/*.md",
]
include_patterns += [f"{EXECUTED}/[0-9][0-9]_*.ipynb"]
exclude_patterns = ["**/*.unfinished.ipynb"]
suppress_warnings = ["myst.header", "toc.not_included"]
suppress_warnings += (
    [] if PROFILE == "mini" else ["myst.xref_missing"]
)  # the front page links to mini's notebooks

html_theme = "sphinx_book_theme"
html_theme_options = {
    "home_page_in_toc": True,
    "navbar_persistent": [],
    "use_download_button": False,
}
html_static_path = [
    str(resources.files("sphinx-mathjax-offline") / "static" / "mathjax" / "tex-svg-full.js")
]
html_copy_source = html_show_copyright = html_use_index = False
# one file: its formulas are drawn, so that no browser's rules for fonts hold them up
mathjax_path = "tex-svg-full.js"
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # they would come from the network
nb_output_stderr = "remove"  # progress bars
nb_render_markdown_format = "myst"


def setup(app):
    """A table of contents at the side, and a page of the name that servers expect."""
    notebooks = sorted(Path(app.srcdir, EXECUTED).glob("[0-9][0-9]_*.ipynb"))
    names = "\n".join(
        f"{EXECUTED}/{path.stem}" for path in notebooks if ".unfinished" not in path.name
    )
    if not names:
        raise ConfigError(
            f"no executed notebook of the profile {PROFILE!r}: ./run_all.sh --profile {PROFILE} first"
        )
    toctrees = f"\n```{{toctree}}\n:hidden:\n:caption: Notebooks\n\n{names}\n```\n"
    toctrees += (
        "\n```{toctree}\n:hidden:\n:caption: Beside them\n\nCONTRIBUTING\ndata/mini/README\n```\n"
    )

    def append(_, name, source):
        if name == root_doc:
            source[0] += toctrees

    def forward(app, _):
        page = Path(app.outdir, "index.html")
        page.write_text('<meta http-equiv="refresh" content="0; url=README.html">')
        print(f"open it in a browser: {os.path.relpath(page)}")

    app.connect("source-read", append)
    app.connect("build-finished", forward)
