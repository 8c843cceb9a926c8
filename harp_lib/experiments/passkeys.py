"""Pass keys: texts that name a key and ask for it at their end."""

import itertools
from collections.abc import Sequence

import torch

from harp_lib.experiments.context import HELD_OUT, Context
from harp_lib.experiments.texts import Text
from harp_lib.text.corpora import Corpus
from harp_lib.text.perplexity import Window

PASSKEY = "passkey"
# Keys are four of these digits. Those of calibration texts are never evaluated.
EVALUATED_DIGITS = "31629487501376492865"
CALIBRATION_DIGITS = "86094137258069713524"
FILLER = (
    "The river runs past the mill. Boats come up at noon, and leave before dark. "
    "Somebody mends a net. "
)


def passkeys(
    context: Context, lengths: Sequence[int], depths: int, keys: int, digits: str = EVALUATED_DIGITS
) -> tuple[Text, list[dict[str, float]]]:
    """Texts that name a pass key and ask for it, and the length and depth of each.

    Only the key at the end is predicted. There are ``keys`` texts for each of the ``lengths``, in
    tokens of filler, and each of ``depths`` places from the beginning (0) to the end (1).
    """
    texts = []
    windows = []
    places = []
    for length, depth, number in itertools.product(lengths, range(depths), range(keys)):
        first = 2 * (number + depth) % len(digits)
        key = (digits + digits)[first : first + 4]
        share = depth / max(1, depths - 1)
        texts.append(_text(context, length, depth, depths, key))
        places.append({"length": length, "depth": share})
        question_ids = context.tokenizer(texts[-1].removesuffix(f" {key}")).input_ids
        answered_ids = context.tokenizer(texts[-1]).input_ids
        windows.append([Window(torch.tensor(answered_ids), len(answered_ids) - len(question_ids))])
    corpus = Corpus(PASSKEY, HELD_OUT, "embedded", tuple(texts))
    return Text(corpus, windows, context.model, context.inputs), places


def _text(context: Context, length: int, depth: int, depths: int, key: str) -> str:
    """About ``length`` tokens of filler with the key in them, the question and its answer."""
    filler = FILLER * length
    ids = context.tokenizer(filler, add_special_tokens=False, verbose=False).input_ids
    room = int(length * len(filler) / len(ids))  # characters
    place = room * depth // max(1, depths - 1)
    text = f"{filler[:place]}\nThe pass key is {key}. Remember it.\n{filler[: room - place]}"
    question = f"Find the pass key in this text.\n{text}\nWhat is the pass key? The pass key is"
    return f"{question} {key}"
