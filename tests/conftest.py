"""What several test files share."""

import copy
import os
import signal
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may depend on the hub
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell leaves it behind `&`; processes hand it down
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(__file__).resolve().parents[2] / "shared"
FAMILIES = ("tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-gemma2")
LONG = ("test_notebooks.py", "test_paper_profile.py")  # take minutes


def pytest_collection_modifyitems(items):
    """What takes long goes first, so that no process is left alone with it."""
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture
def shared():
    """The folder of golden logits and real benchmark rows beside the checkout, where there is one."""
    if not SHARED.is_dir():
        pytest.skip("no folder ../shared beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def _tiny_models():
    from harp_lib.measure.registry import tiny_model

    return {name: tiny_model(name) for name in FAMILIES}


@pytest.fixture
def tiny(_tiny_models):
    """tiny(name): a fresh copy of a tiny random model."""
    return lambda name="tiny-llama": copy.deepcopy(_tiny_models[name])


@pytest.fixture
def tokens():
    """Four sequences of 48 random tokens."""
    return torch.randint(3, 500, (4, 48), generator=torch.Generator().manual_seed(0))
