"""How models are run where nothing is trained."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from harp_lib.prefix_lm.onednn import by_onednn
from harp_lib.pruning.architecture import evaluation_mode


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Context in :func:`.evaluation_mode`, with linear layers on a CPU run by oneDNN."""
    with evaluation_mode(model), by_onednn(model):
        yield
