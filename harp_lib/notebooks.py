"""The notebooks: which there are, which parameters they have, and running one with papermill."""

import hashlib
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError
from traitlets.config import Config

from harp_lib.console import KernelText

LAST = "00"  # reads what the others store, so it runs after them
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


def select(notebooks: Path, only: Sequence[str] | None = None) -> list[Path]:
    """Numbered notebooks of a folder in number order, all or those of some numbers (``"03"``)."""
    found = sorted(notebooks.glob("[0-9][0-9]_*.ipynb"))
    return [path for path in found if only is None or path.name[:2] in only]


def parameters_of(
    sources: Sequence[Path], always: Mapping[str, Any], shared: Mapping[str, Any], explicit: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Parameters to run each notebook with, by its file's name.

    Parameters
    ----------
    sources : sequence of Path
    always : mapping
        Passed to every notebook.
    shared : mapping
        Passed to the notebooks that have them; at least one must.
    explicit : mapping
        Every notebook must have these; beside others, ``00`` need not, because it only reads what they store.

    Raises
    ------
    RefusedError
        If a notebook has not the parameters that it should have, or cannot be read.
    """
    have = {source: _inspect(source) for source in sources}
    for source, names in have.items():
        for name in explicit:
            if name not in names and not (source.name.startswith(LAST) and len(sources) > 1):
                raise RefusedError(f"{source.stem} has no parameter {name!r}; it has {', '.join(names) or 'none'}")
    for name in shared:
        if not any(name in names for names in have.values()):
            listed = "; ".join(f"{source.stem} has {', '.join(names) or 'none'}" for source, names in have.items())
            raise RefusedError(f"no selected notebook has a parameter {name!r}: {listed}")
    return {
        source.name: {**always, **{name: value for name, value in (shared | explicit).items() if name in names}}
        for source, names in have.items()
    }


def _inspect(source: Path) -> list[str]:
    try:
        return list(papermill.inspect_notebook(source))
    except Exception as error:  # JSON, nbformat and papermill each raise their own
        raise RefusedError(f"{source.name} cannot be read as a notebook: {error}") from error


def execute(source: Path, output: Path, parameters: dict[str, Any], text: KernelText) -> dict[str, str]:
    """Run one notebook.

    Parameters
    ----------
    source, output : Path
        The notebook, in whose folder it runs, and where it goes with its outputs, stamped with the source's hash.
    parameters : dict
        For its parameters cell.
    text : KernelText
        Takes what the notebook prints.

    Returns
    -------
    dict
        ``result``: done, failed or interrupted; and ``error``, the failing cell's message.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _quiet_papermill():
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
    except KeyboardInterrupt:
        return {"result": "interrupted", "error": ""}
    except DeadKernelError:
        _note(output, _KERNEL_DIED)
        return {"result": "failed", "error": _KERNEL_DIED}
    except PapermillExecutionError as error:
        return {"result": "failed", "error": f"cell [{error.exec_count}] raised {error.ename}: {error.evalue}".strip()}
    except Exception as error:  # the kernel did not start, the disk is full, …
        return {"result": "failed", "error": f"{type(error).__name__}: {error}".strip()}
    return {"result": "done", "error": ""}


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
