"""Whether a model that reads a tree finds the logits that it finds of each text alone."""

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from .cache import TextBatch
from .onednn import by_onednn
from .reader import TreeReader, num_mixing_layers, only_places
from .tree import Tokens

# Tokens of the texts on which a tree is compared with the model's own logits.
SHORTEST_TRIAL = 8
LONGEST_TRIAL = 1024
LATEST_BRANCH = 64
# Differences of logits that rounding explains, relative to their spread.
ROUNDING = 1e-3
ROUNDING_16_BITS = 0.1


@dataclass
class Trials:
    """What was found out about a model that is built in one way."""

    failure: str | None = None
    # Tokens of the longest text that was read, when scoring (False) and when writing (True).
    lengths: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})


_trials: WeakKeyDictionary[PreTrainedModel, dict[Hashable, Trials]] = WeakKeyDictionary()


def tree_failure(
    model: PreTrainedModel, device: torch.device, longest: Tokens, is_writing: bool
) -> str | None:
    """Why texts cannot be read as a tree, as the end of a sentence, or None.

    The model is tried where it is built as never before, or where no text that was tried is as long
    as ``longest``; of a longer text than LONGEST_TRIAL its beginning is tried.
    """
    tokens = longest[:LONGEST_TRIAL]
    trials = _trials.setdefault(model, {}).setdefault(build_of(model), Trials())
    if trials.failure is None and len(tokens) > trials.lengths[is_writing]:
        with by_onednn(model):
            trials.failure = failed_trial(model, device, tokens, is_writing)
        trials.lengths[is_writing] = len(tokens)
    return trials.failure


def build_of(model: PreTrainedModel) -> Hashable:
    """A description that is equal for models that read texts by the same code.

    A model that is pruned in 9 layers is described like one that is pruned in 12. Attributes of
    modules, and functions that replace those of a class, are not in it. It does not keep the model
    alive.
    """
    kinds = set()
    for module in model.modules():
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        replaced = [vars(module)[name] for name in ("forward", "generate") if name in vars(module)]
        kinds.add((type(module), *map(_code_of, [*hooks, *replaced])))
    config = model.config.to_dict()
    config.pop("pruning_plan", None)
    layers = model.get_decoder().layers
    return (
        frozenset(kinds),
        json.dumps(config, sort_keys=True, default=str),
        model.get_decoder().config._attn_implementation,  # which to_dict leaves out
        type(layers[0].self_attn),  # transformers asks this layer for the length of the cache
        num_mixing_layers(layers) < len(layers),
        model.dtype,
        model.device,
    )


def _code_of(function: Callable) -> Hashable:
    """The code of a function, or the class of another callable; neither refers to a model."""
    function = getattr(function, "func", function)  # of a partial
    return getattr(function, "__code__", type(function))


@torch.no_grad()
def failed_trial(
    model: PreTrainedModel, device: torch.device, tokens: Tokens, is_writing: bool
) -> str | None:
    """Read two texts as a tree, write a token after each, and compare with the model's own logits.

    The model's own are those of its forward pass on each text alone or, for writing, of its
    ``generate``. One text is ``tokens``, and the other leaves it on the way. It should be as long
    as any that is read later: a sliding window or another limit may matter from some length on.
    """
    texts = texts_that_part(tokens)
    prompts = [text[:-1] for text in texts]
    try:
        if is_writing:
            own = [written_logits(model, device, prompt) for prompt in prompts]
        else:
            own = [last_logits(model, device, text) for text in texts]
        reader = TreeReader(model, device)
        read = {prompt.tokens: prompt for prompt in reader.read_prompts(prompts)}
        batch = TextBatch([read[prompt] for prompt in prompts], max_new_tokens=1)
        batch.add_position()
        next_logits = reader.next_logits(batch, torch.tensor([token for token, _ in own]))
        is_close = True
        for prompt, (_, expected), after_token in zip(prompts, own, next_logits, strict=True):
            logits = torch.stack([read[prompt].logits.float(), after_token])  # (2, V)
            is_close = is_close and agree(logits, expected, model.dtype)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise  # which says nothing about trees
    except Exception as error:
        return f"reading a tree ended in {type(error).__name__}: {error}"
    return None if is_close else "a tree of texts has other logits than the texts alone"


def texts_that_part(tokens: Tokens) -> list[Tokens]:
    """A text, made longer if it is very short, and another that leaves it before its end."""
    length = min(max(len(tokens), SHORTEST_TRIAL), LONGEST_TRIAL)
    text = (tokens * SHORTEST_TRIAL)[:length]
    place = min(length // 2, LATEST_BRANCH)
    branch = [token for token in text if token != text[place]] or [text[place] ^ 1]
    return [text, text[:place] + tuple(branch[: place // 2])]


def agree(logits: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether logits (N, V) differ by no more than rounding explains, relative to their spread."""
    tolerance = ROUNDING_16_BITS if dtype.itemsize == 2 else ROUNDING
    spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    return bool(((logits - expected).norm(dim=-1) <= tolerance * spread).all())


def last_logits(
    model: PreTrainedModel, device: torch.device, tokens: Tokens
) -> tuple[int, torch.Tensor]:
    """The last token, and logits (2, V) before and after it, of the model's own forward pass."""
    places = torch.tensor([len(tokens) - 2, len(tokens) - 1])
    with only_places(places, model.get_output_embeddings()):
        output = model(torch.tensor([tokens], device=device))
    return tokens[-1], output.logits[0].float()


def written_logits(
    model: PreTrainedModel, device: torch.device, prompt: Tokens
) -> tuple[int, torch.Tensor]:
    """The token that ``generate`` writes after a prompt, and logits (2, V) before and after it."""
    output = model.generate(
        torch.tensor([prompt], device=device),
        do_sample=False,
        max_new_tokens=2,
        min_new_tokens=2,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return int(output.sequences[0, -2]), torch.cat(output.logits).float()
