"""Notebooks: how they are executed, and what an executed one has of its source.

An executed notebook is its source with outputs, stamped with a digest of its code, its parameters
and the stored cells that it shows. Prose is not in the digest: whoever changes a sentence copies it
into the executed notebooks and executes nothing. ``python -m harp_lib.notebooks`` does so, which is
a hook of each commit, and so does each run.
"""

import copy
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from harp_lib import without_grammar  # noqa: F401

# isort: split

import nbformat
from nbformat import NotebookNode

from harp_lib import config
from harp_lib.evaluation.benchmarks import kind_of
from harp_lib.experiments import models_of
from harp_lib.results import digest, listed_cells
from harp_lib.units import UNITS, units_of

PARAMETERS = "parameters"  # the tag of the cell whose values a run replaces
INJECTED = "injected-parameters"  # papermill's tag of the cell behind it, which has a run's values
OF_THE_RUN = "The values of this run, which count in place of those above"  # begins that cell
LOADS_A_MODEL = "model"  # the tag of the cells that load one, or compute results
NEEDS = "needs:"  # the beginning of a tag of cells that show a section of the profile
AT_ONCE = 2  # notebooks that are drawn side by side
LAST = "00"  # the number of the notebook that shows what the others judge
TEXTS = {"text/plain", "text/markdown"}  # kinds of output
PART_OF_HTML = re.compile(
    r"<(script|style|svg)\b.*?</\1\s*>|<[^>]*>|[^<]+", re.DOTALL | re.IGNORECASE
)
"""Code or a picture, a tag, or text."""
BEFORE_A_PATH = r"(?:(?<=file://)|(?<![^\s'\"`(\[{<>=,:;|]))(?<!;base64,)"
AFTER_A_FOLDER = r"(?=[/\s'\"`)\]}<>,:;|]|&(?!amp;)#?\w+;|[.?!]?(?:\s|$))"
KILLED = "its process was killed: as a rule the machine ran out of memory"


class NotebookFailed(Exception):
    """A notebook did not come to its end; the message says where and why."""


def execute(name: str, profile: str, parameters: dict[str, Any]) -> Path:
    """Run a notebook in its folder, and write it with outputs but without paths of this machine.

    Progress bars and warnings, which go to stderr, are for the terminal alone. The notebook goes to
    ``notebooks/executed/<profile>``. If a cell raises or the kernel dies, it is left there as
    ``….unfinished.ipynb``, and a NotebookFailed is raised.
    """
    source = read(name)
    settings = config.read_profile(profile, parameters.get("models"))
    output = executed_file(name, profile)
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _unfinished(output)
    os.environ[config.PAGE] = str(output.parent.absolute())  # for links from figures
    try:
        with chdir(config.NOTEBOOKS):
            runnable = without_left_out(source, settings)
            executed = _run(runnable, parameters, unfinished, terminal=sys.stdout)
    except NotebookFailed as failure:
        file = os.path.relpath(unfinished, config.SHOWN_FROM)
        raise NotebookFailed(f"{failure}; see {file}") from failure
    folders = _names_of_local_folders(parameters.get("datasets"))
    portable = _portable(parameters, folders)
    written = with_outputs(source, executed)
    _make_portable(written, portable, folders)
    written.metadata["harp"] = {
        "parameters": portable,
        "digest": digest_of(source, portable, cells_shown(profile, name)),
    }
    unfinished.write_text(nbformat.writes(written), encoding="utf-8")
    unfinished.replace(output)
    return output


def is_current(name: str, profile: str, parameters: dict[str, Any]) -> bool:
    """Whether an executed notebook shows what a run with these parameters would show."""
    file = executed_file(name, profile)
    if not file.is_file():
        return False
    folders = _names_of_local_folders(parameters.get("datasets"))
    stamp = nbformat.read(file, as_version=4).metadata.get("harp", {})
    shown = cells_shown(profile, name)
    current = digest_of(read(name), _portable(parameters, folders), shown)
    return stamp.get("digest") == current


def draw_all(profile: str) -> Iterator[tuple[str, str]]:
    """Run all notebooks without the cells that load a model, for the files that they write.

    Two run side by side. Notebook 00 comes last, because it shows what the others judge. Yields
    each notebook's name, and why it failed, or "".
    """
    others = [name for name in names() if not name.startswith(LAST)]
    last = [name for name in names() if name.startswith(LAST)]
    settings = config.read_profile(profile)
    with chdir(config.NOTEBOOKS), ThreadPoolExecutor(AT_ONCE) as pool:
        for side_by_side in (others, last):
            drawn = {}
            for name in side_by_side:
                notebook = without_left_out(without_models(read(name)), settings)
                drawn[name] = pool.submit(_run, notebook, {"profile": profile})
            for name, future in drawn.items():
                failure = future.exception()
                if failure and not isinstance(failure, NotebookFailed):
                    raise failure
                yield name, str(failure or "")


def copy_prose(profile: str) -> list[str]:
    """Give the executed notebooks of a profile the prose of their sources, if they have its code.

    Returned are the names of those that changed. The time of a changed file stays: it is as old as
    its outputs.
    """
    changed = []
    for name in names():
        file = executed_file(name, profile)
        if not file.is_file():
            continue
        source = read(name)
        text = file.read_text(encoding="utf-8")
        executed = nbformat.reads(text, as_version=4)
        if code_of(executed) != code_of(source):
            continue  # it has to be executed
        merged = nbformat.writes(with_outputs(source, executed))
        if merged != text:
            times = file.stat()
            _unfinished(file).write_text(merged, encoding="utf-8")
            _unfinished(file).replace(file)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
            changed.append(name)
    return changed


def names() -> list[str]:
    """The names of all notebooks, which begin with two digits, in order."""
    return sorted(file.stem for file in config.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def read(name: str) -> NotebookNode:
    """The source of a notebook."""
    return nbformat.read(config.NOTEBOOKS / f"{name}.ipynb", as_version=4)


def executed_file(name: str, profile: str) -> Path:
    """Where a notebook lies that was executed for a profile."""
    return config.NOTEBOOKS / "executed" / profile / f"{name}.ipynb"


def code_of(notebook: NotebookNode) -> list[str]:
    """The code of each cell that has some, but for the cell that a run adds."""
    return [cell.source for cell in _code_cells(notebook)]


def cells_shown(profile: str, name: str) -> list[str]:
    """Digests of the stored cells that a notebook shows.

    A notebook that no experiment names may show them all.
    """
    units = units_of(name) or UNITS
    return sorted({cell for unit in units for cell in listed_cells(profile, unit)})


def digest_of(source: NotebookNode, parameters: dict[str, Any], cells: list[str]) -> str:
    """The stamp of an executed notebook: a digest of what its outputs depend on.

    These are its source's code, the values that a run gave its parameters, and the
    :func:`cells_shown`.
    """
    return digest({"code": code_of(source), "parameters": parameters, "cells": cells})


def with_outputs(source: NotebookNode, executed: NotebookNode) -> NotebookNode:
    """A copy of a notebook with the outputs of its executed cells, except those to stderr.

    It has the cell with the parameters of the run, too. The code of both has to be the same.
    """
    merged = copy.deepcopy(source)
    merged.metadata = copy.deepcopy(executed.metadata)
    merged.metadata.pop("papermill", None)  # times, and paths of this machine
    for cell, done in zip(_code_cells(merged), _code_cells(executed), strict=True):
        cell.execution_count = done.execution_count
        cell.outputs = [output for output in done.outputs if output.get("name") != "stderr"]
    for cell in executed.cells:
        if INJECTED in _tags(cell):
            cell.metadata = NotebookNode(tags=[INJECTED])
            cell.id = INJECTED  # papermill draws another one in each run
            merged.cells.insert(_place_of_parameters(merged), cell)
    return merged


def without_models(notebook: NotebookNode) -> NotebookNode:
    """A copy of a notebook without the cells that load a model."""
    kept = copy.deepcopy(notebook)
    kept.cells = [cell for cell in kept.cells if LOADS_A_MODEL not in _tags(cell)]
    return kept


def without_left_out(notebook: NotebookNode, profile: dict[str, Any]) -> NotebookNode:
    """A copy of a notebook whose cells say so where the profile leaves out what they would show.

    Such a cell has a tag as ``needs:efficiency.split``, which is left out if it is empty, and also
    if the profile has no model for the unit ``efficiency``. ``needs:likelihoods.tasks:generation``
    is left out if no task is of that kind.
    """
    runnable = copy.deepcopy(notebook)
    for cell in _code_cells(runnable):
        sections = [tag.removeprefix(NEEDS) for tag in _tags(cell) if tag.startswith(NEEDS)]
        left_out = [section for section in sections if _is_left_out(profile, section)]
        if left_out:
            cell.source = "\n".join(f"results.leave_out({section!r})" for section in left_out)
    return runnable


def _is_left_out(profile: dict[str, Any], section: str) -> bool:
    path, _, kind = section.partition(":")
    first = path.partition(".")[0]
    if first in UNITS and not models_of(profile, first):
        return True
    if kind:
        return kind not in map(kind_of, profile[first]["tasks"])
    return config.is_left_out(profile, path)


def _run(
    notebook: NotebookNode,
    parameters: dict[str, Any],
    output: Path | None = None,
    terminal: TextIO | None = None,
) -> NotebookNode:
    """A copy of a notebook that was executed in the working directory.

    ``output`` is written after each cell, and what a cell prints is shown on ``terminal``.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    papermill.log.logger.setLevel("CRITICAL")  # an error is reported once, by who calls this
    try:
        # The user's profile of IPython would change outputs; here is none.
        with TemporaryDirectory(ignore_cleanup_errors=True) as no_profile:
            return papermill.execute_notebook(
                notebook,
                output and for_papermill(output),
                parameters,
                kernel_name="python3",
                coalesce_streams=True,
                stdout_file=terminal,
                stderr_file=terminal,
                progress_bar=False,  # a notebook has its own
                extra_arguments=[
                    f"--ipython-dir={no_profile}",
                    # A kernel that is told to end would print that it was interrupted.
                    "--IPKernelApp.log_level=CRITICAL",
                ],
                # Without this each kernel prints a warning.
                config=Config({"KernelManager": {"transport_encryption": "auto"}}),
            )
    except DeadKernelError as error:
        advice = "choose a smaller model (--models) or profile"
        raise NotebookFailed(f"the kernel died: {KILLED}; {advice}") from error
    except papermill.exceptions.PapermillExecutionError as error:
        where = f"cell [{error.exec_count}] raised {error.ename}: {error.evalue}"
        raise NotebookFailed(where) from error


def for_papermill(path: Path) -> str:
    """A path as papermill reads it: a template, in which parameters may stand in braces."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _unfinished(output: Path) -> Path:
    return output.with_suffix(".unfinished.ipynb")


def _tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def _code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells of code, but for the one that a run adds."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for cell in cells if INJECTED not in _tags(cell)]


def _place_of_parameters(notebook: NotebookNode) -> int:
    """The index behind the cell of parameters, or 0, which is where papermill adds a run's."""
    for index, cell in enumerate(notebook.cells):
        if PARAMETERS in _tags(cell):
            return index + 1
    return 0


def _names_of_local_folders(datasets: str | None) -> dict[str, str]:
    """What executed notebooks call the folders that only this machine has, by their paths.

    A root and a folder in a root, as ``/app`` or ``/root``, keep their paths. In a text these may
    be something else, and they tell nothing of the machine.
    """
    folders = {"~": "~", sys.prefix: "<environment>", config.ROOT: "."}
    if datasets and os.path.isabs(datasets):
        folders[datasets] = Path(datasets).name
    names = {}
    for folder, name in folders.items():
        path = os.path.abspath(os.path.expanduser(folder))
        names |= {path: name, os.path.realpath(path): name}
    return {path: name for path, name in names.items() if len(Path(path).parts) > 2}


def _make_portable(
    notebook: NotebookNode, parameters: dict[str, Any], folders: dict[str, str]
) -> None:
    """Remove the paths of this machine from an executed notebook.

    Its outputs that are text get the names of ``folders``, and so do ``parameters``, which its
    cell shows. Other code and pictures stay as they are.
    """
    from papermill.translators import translate_parameters

    def of_html(part: re.Match) -> str:
        return part[0] if part[0].startswith("<") else _portable(part[0], folders)

    for cell in notebook.cells:
        if INJECTED in _tags(cell):
            cell.source = translate_parameters("python3", "python", parameters, OF_THE_RUN)
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = _portable(output.text, folders)
            data = output.get("data", {})
            for kind in TEXTS & data.keys():
                data[kind] = _portable(data[kind], folders)
            if "text/html" in data:
                data["text/html"] = PART_OF_HTML.sub(of_html, data["text/html"])


def _portable(value: Any, folders: dict[str, str]) -> Any:
    """A text, or what lists and dicts hold, with names of folders where these are whole parts."""
    if isinstance(value, dict):
        return {key: _portable(item, folders) for key, item in value.items()}
    if isinstance(value, list):
        return [_portable(item, folders) for item in value]
    if not isinstance(value, str) or not folders:
        return value
    longest_first = sorted(folders, key=len, reverse=True)
    paths = "|".join(map(re.escape, longest_first))
    whole_parts = f"{BEFORE_A_PATH}({paths}){AFTER_A_FOLDER}"
    return re.sub(whole_parts, lambda found: folders[found[1]], value)


if __name__ == "__main__":
    for folder in sorted((config.NOTEBOOKS / "executed").iterdir()):
        for name in copy_prose(folder.name):
            print(f"{name} of {folder.name}: the prose of its source was copied")
