"""Runs the notebooks with papermill, shows what they print, and says at the end how each one fared."""

import hashlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import nbformat
import papermill
from jupyter_client import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError
from tabulate import tabulate
from traitlets.config import Config

from harp_lib import paths
from harp_lib.console import KernelText

# By default a kernel warns, in every notebook, that what it says travels unencrypted; so let it be encrypted.
_ENCRYPTED = Config({"KernelManager": {"transport_encryption": "auto"}})
_KERNEL_DIED = (
    "the kernel died: as a rule the machine ran out of memory. "
    "Close other programs, or choose a smaller model (--models) or profile (--profile)"
)


class _Kernels(AsyncKernelManager):
    async def shutdown_kernel(self, now: bool = False, restart: bool = False) -> None:
        """Kill an interrupted kernel at once: asked to leave while it computes, it prints a traceback."""
        interrupted = isinstance(sys.exc_info()[1], KeyboardInterrupt)
        await super().shutdown_kernel(now=now or interrupted, restart=restart)


class RefusedError(ValueError):
    """The notebooks cannot be run with these parameters; nothing was run."""


@dataclass
class Outcome:
    """How one notebook fared."""

    name: str
    result: str = "not run"  # done, failed, interrupted
    seconds: float | None = None
    output: str = ""
    error: str = ""


def select(notebooks: Path, only: Sequence[str] | None = None) -> list[Path]:
    """Numbered notebooks of a folder in number order, all or those of some numbers (``"03"``)."""
    found = sorted(notebooks.glob("[0-9][0-9]_*.ipynb"))
    return [path for path in found if only is None or path.name[:2] in only]


def run_notebooks(
    profile: str,
    only: Sequence[str] | None = None,
    shared: Mapping[str, Any] | None = None,
    explicit: Mapping[str, Any] | None = None,
    *,
    notebooks: Path = paths.NOTEBOOKS,
    executed: Path | None = None,
    stream: TextIO | None = None,
) -> int:
    """Run notebooks one after the other, also when one of them fails.

    Parameters
    ----------
    profile : str
        Passed to every notebook.
    only : sequence of str, optional
        Numbers of the notebooks to run, with two digits; all of them when not given.
    shared : mapping, optional
        Parameters that go to the notebooks that have them; at least one must.
    explicit : mapping, optional
        Parameters that every notebook must have.
    notebooks, executed : Path
        Folder of the sources, also the kernels' working directory, and folder of the outputs, which go to
        ``executed/<profile>`` (default: ``notebooks/executed``).
    stream : file, optional
        Where to show progress and the final table (default: stdout).

    Returns
    -------
    int
        Exit code: 0, 1 if a notebook failed, 130 if the user interrupted.

    Raises
    ------
    RefusedError
        Before anything runs, if there is no notebook, or one has not the parameters it should have.
    """
    stream = stream or sys.stdout
    sources = select(notebooks, only)
    if not sources:
        raise RefusedError(f"no notebook to run: there is no {notebooks.name}/NN_*.ipynb" + _numbered(only))
    parameters = _parameters(sources, {"profile": profile}, shared or {}, explicit or {})
    folder = (executed or notebooks / "executed") / profile
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = [Outcome(source.stem) for source in sources]
    interrupted = False
    with _quiet_papermill():
        for source, outcome in zip(sources, outcomes, strict=True):
            output = folder / source.name
            outcome.output = os.path.relpath(output, notebooks.parent)
            print(f"── {source.stem}", file=stream, flush=True)
            _run_one(source, output, parameters[source], outcome, stream)
            if outcome.result == "interrupted":
                interrupted = True
                break
    _report(outcomes, stream)
    if interrupted:
        return 130
    return int(any(outcome.result == "failed" for outcome in outcomes))


def _numbered(only: Sequence[str] | None) -> str:
    return f" numbered {', '.join(only)}" if only else ""


def _parameters(
    sources: Sequence[Path], always: Mapping[str, Any], shared: Mapping[str, Any], explicit: Mapping[str, Any]
) -> dict[Path, dict[str, Any]]:
    """Parameters of each notebook, or RefusedError if one is given that it has not."""
    have = {source: _inspect(source) for source in sources}
    for source, names in have.items():
        for name in explicit:
            if name not in names:
                raise RefusedError(f"{source.stem} has no parameter {name!r}; it has {', '.join(names) or 'none'}")
    for name in shared:
        if not any(name in names for names in have.values()):
            listed = "; ".join(f"{source.stem} has {', '.join(names) or 'none'}" for source, names in have.items())
            raise RefusedError(f"no selected notebook has a parameter {name!r}: {listed}")
    return {
        source: {**always, **{name: value for name, value in shared.items() if name in names}, **explicit}
        for source, names in have.items()
    }


def _inspect(source: Path) -> list[str]:
    try:
        return list(papermill.inspect_notebook(source))
    except Exception as error:  # JSON, nbformat and papermill each raise their own
        raise RefusedError(f"{source.name} cannot be read as a notebook: {error}") from error


def _run_one(source: Path, output: Path, parameters: dict[str, Any], outcome: Outcome, stream: TextIO) -> None:
    text = KernelText(stream)
    start = time.monotonic()
    try:
        papermill.execute_notebook(
            source,
            output,
            parameters,
            kernel_name="python3",
            cwd=source.parent,
            progress_bar=False,  # the notebooks have their own
            stdout_file=text,
            stderr_file=text,
            coalesce_streams=True,  # a progress bar leaves its last state in the notebook, not each one
            config=_ENCRYPTED,
            kernel_manager_class=_Kernels,
        )
        _stamp(output, source)
        outcome.result = "done"
    except KeyboardInterrupt:
        outcome.result = "interrupted"
    except DeadKernelError:
        outcome.result, outcome.error = "failed", _KERNEL_DIED
        _note(output, _KERNEL_DIED)
    except PapermillExecutionError as error:
        last_line = f"{error.ename}: {error.evalue}".strip().splitlines()[-1]
        outcome.result, outcome.error = "failed", last_line
    except Exception as error:  # the kernel did not start, the disk is full, …: the others still get their turn
        outcome.result, outcome.error = "failed", f"{type(error).__name__}: {error}".strip().splitlines()[-1]
    finally:
        text.close()
        outcome.seconds = time.monotonic() - start


def _stamp(output: Path, source: Path) -> None:
    """Record which source was run, and take the paths of this machine out of the executed notebook."""
    notebook = nbformat.read(output, as_version=4)
    notebook.metadata.papermill.update(input_path=source.name, output_path=output.name)
    change = partial(_anonymous, root=source.parent.parent)
    notebook.metadata = _replace(notebook.metadata, change)
    for cell in notebook.cells:
        written = ["source"] if "injected-parameters" in cell.metadata.get("tags", []) else []
        for key in ("metadata", "outputs", *written):
            if key in cell:
                cell[key] = _replace(cell[key], change)
    notebook.metadata["harp"] = {"source_sha256": hashlib.sha256(source.read_bytes()).hexdigest()}
    nbformat.write(notebook, output)


def _anonymous(text: str, root: Path) -> str:
    for folder, name in ((root, "."), (Path(sys.prefix), "<environment>"), (Path.home(), "~")):
        text = re.sub(rf"(?<![\w./-]){re.escape(str(folder))}(?![\w-])", name, text)
    return text


def _replace(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_replace(item, change) for item in value]
    if isinstance(value, dict):
        return type(value)({key: _replace(item, change) for key, item in value.items()})
    return value


def _note(output: Path, text: str) -> None:
    """Put an error on top of an executed notebook whose kernel could not do so itself."""
    notebook = nbformat.read(output, as_version=4)
    cell = nbformat.v4.new_markdown_cell(f"**{text}.**", metadata={"tags": ["papermill-error-cell-tag"]})
    notebook.cells.insert(0, cell)
    nbformat.write(notebook, output)


def _report(outcomes: Sequence[Outcome], stream: TextIO) -> None:
    rows = [[o.name, o.result, "" if o.seconds is None else f"{o.seconds:.0f}", o.output] for o in outcomes]
    headers = ["notebook", "outcome", "seconds", "output"]
    table = tabulate(rows, headers, disable_numparse=True, colalign=("left", "left", "right", "left"))
    print(f"\n{table}", file=stream)
    for outcome in outcomes:
        if outcome.error:
            print(f"{outcome.name}: {outcome.error}", file=stream)
    stream.flush()


@contextmanager
def _quiet_papermill() -> Iterator[None]:
    """Keep papermill's and nbclient's own log off the terminal: the table says what went wrong."""
    logger = logging.getLogger("papermill")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
