"""Sphinx extension: a link to a source file leads to a page of the book that shows the file."""

import html
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx
from sphinx.config import Config

CHECKOUT = Path(__file__).parents[2]
SHOWN = (".cff", ".lock", ".py", ".sh", ".toml", ".yaml", ".yml", "")
"""Suffixes of files that are shown; a link to another file (a figure, numbers) downloads it."""


def link_to_source_pages(app: Sphinx, doctree: nodes.document) -> None:
    """Replace downloads of source files by links to their pages."""
    for node in list(doctree.findall(download_reference)):
        name, path = app.env.relfn2path(node["reftarget"], app.env.docname)
        if Path(path).suffix not in SHOWN or not Path(path).is_file():
            continue
        source = Path(path).read_text(encoding="utf-8")
        line = line_of_definition(source, node.astext())
        uri = page_of_source(app, name, source, line)
        node.replace_self(nodes.reference("", "", *node.children, internal=True, refuri=uri))


def page_of_source(app: Sphinx, name: str, source: str, line: int | None) -> str:
    """Address of the page of a source file, as seen from the page that is read now."""
    app.source_files[name] = source
    page = app.builder.get_relative_uri(app.env.docname, f"source/{name}")
    return page if line is None else f"{page}#line-{line}"


def line_of_definition(source: str, name: str) -> int | None:
    """The line that defines a function or class of this name, if there is one."""
    definition = re.search(rf"^(?:def|class) {re.escape(name)}\b", source, re.MULTILINE)
    if definition is None:
        return None
    return source.count("\n", 0, definition.start()) + 1


def source_of_name(app: Sphinx, module: str, name: str) -> str | None:
    """Address of the source of a name in the API reference; None for a constant."""
    documented = sys.modules[module]
    for attribute in name.split("."):
        documented = getattr(documented, attribute)
    if isinstance(documented, property):
        documented = documented.fget
    try:
        documented = inspect.unwrap(documented)
        path = Path(inspect.getsourcefile(documented))
    except TypeError:
        return None
    _, line = inspect.getsourcelines(documented)
    file = path.relative_to(CHECKOUT).as_posix()
    return page_of_source(app, file, path.read_text(encoding="utf-8"), line)


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    """Name, content and template of a page for each source file that some page links to."""
    formatter = HtmlFormatter(linespans="line")
    for name, source in sorted(app.source_files.items()):
        try:
            lexer = get_lexer_for_filename(name)
        except ClassNotFound:
            lexer = TextLexer()
        title = html.escape(name)
        body = f"<h1>{title}</h1>\n{highlight(source, lexer, formatter)}"
        yield f"source/{name}", {"title": title, "body": body}, "page.html"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.source_files = {}  # path in the checkout: text

    def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
        return source_of_name(app, info["module"], info["fullname"])

    def resolve_names(app: Sphinx, config: Config) -> None:
        config.linkcode_resolve = linkcode_resolve

    app.connect("config-inited", resolve_names)
    # Before Sphinx collects the downloads, which it does at 500.
    app.connect("doctree-read", link_to_source_pages, priority=400)
    app.connect("html-collect-pages", source_pages)
