"""Sphinx's configuration of ``./run_all.sh book``: front page, notebooks, docs and API, offline.

The source folder is the checkout, so that links stay what they are. Nothing is executed, and no
page loads anything from the network: the theme brings its fonts, and MathJax comes out of the wheel
of sphinx-mathjax-offline.
"""

import sys
from importlib import resources
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # contents and source_pages

from contents import PROFILE

html_title = "HARP, reproduced"
if PROFILE != "small":
    html_title += f" · {PROFILE}"
project = "HARP, reproduced"
author = "The HARP companion authors"
extensions = [
    "contents",
    "source_pages",
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.githubpages",  # .nojekyll, without which that host drops folders such as _static
    "sphinx.ext.linkcode",
    "sphinx.ext.mathjax",
]
root_doc = "README"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "data/mini/README.md",
    "docs/**.md",
    f"figures/{PROFILE}/tables/*.md",
    "notebooks/book/tables.md",
    f"notebooks/executed/{PROFILE}/[0-9][0-9]_*.ipynb",
]
exclude_patterns = ["**/*.unfinished.ipynb"]
suppress_warnings = ["myst.header"]
if PROFILE != "small":
    suppress_warnings.append("myst.xref_missing")  # pages link to what other profiles lack

html_theme = "sphinx_book_theme"
html_theme_options = {
    "home_page_in_toc": False,  # contents.py lists it under a shorter name
    "navbar_persistent": [],
    "use_download_button": False,
}
MATHJAX = resources.files("sphinx-mathjax-offline") / "static" / "mathjax" / "tex-svg-full.js"
html_static_path = ["static", str(MATHJAX)]
html_css_files = ["book.css"]
html_copy_source = False
html_show_copyright = False
html_domain_indices = False
html_use_index = False
# One file: its formulas are drawn, so that no browser's rules for fonts hold them up.
mathjax_path = "tex-svg-full.js"
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # they would come from the network
nb_output_stderr = "remove"  # progress bars
nb_render_markdown_format = "myst"

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_type_aliases = {"Matrix": "Matrix"}
autodoc_typehints_format = "short"
maximum_signature_line_length = 88
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False
python_use_unqualified_type_names = True
