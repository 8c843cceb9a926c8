"""lm-eval for any transformers decoder, where what requests begin with is computed once.

    lm_eval.simple_evaluate(PrefixLM(pretrained=model, tokenizer=tokenizer), tasks=["mmlu"])

The tokens of all requests form a tree: few-shot examples, then questions, then choices.

1. Tokens that many requests begin with are read into a KV cache, which every branch continues.
2. The rest of the tree is read some hundred tokens at a time, each token once. The branches stand
   one after another in one sequence, and a mask shows every token its ancestors alone.
3. Logits are computed where an answer is scored, and nowhere else.
4. Texts are written side by side, into caches that have room for the tokens to come.

Scores are those of lm-eval's HFLM, to rounding. This file needs torch, transformers and lm-eval,
and nothing else.

Shapes: B texts, T tokens of a pass, S keys (those in the cache, then those of the pass), U scored
tokens, V words of the vocabulary, K key/value heads of width Dh.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import groupby, islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

TOKENS_PER_PASS = 1024  # new tokens of the tree; those in the cache come on top
CACHED_TOKENS = 32_768  # in the caches of all texts that are written side by side
WORTH_CACHING = 16  # tokens; a shorter common beginning is not worth a pass of its own

# Settings of a request under which decoding is greedy.
GREEDY_SETTINGS = {
    "until",
    "max_gen_toks",
    "do_sample",
    "temperature",
    "eos_token_id",
    "min_new_tokens",
}
# Settings of a model's generation config that do not matter where decoding is greedy.
HARMLESS_DEFAULTS = {
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "do_sample",
    "temperature",
    "top_p",
    "top_k",
    "use_cache",
    "transformers_version",
    "_from_model_config",
    "max_length",
    "max_new_tokens",
}
SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}

Tokens = tuple[int, ...]


class PrefixLM(HFLM):
    """:class:`HFLM` for a decoder-only model in memory; what it cannot do faster, ``HFLM`` does."""

    # Likelihoods

    def _loglikelihood_tokens(
        self, requests: list, disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether greedy decoding would write it."""
        if not self._can_share():
            return super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)

        requests_by_tokens: dict[Tokens, list[int]] = {}
        num_scored: dict[Tokens, int] = {}
        for index, (_, context, continuation) in enumerate(requests):
            tokens = tuple((context + continuation)[-(self.max_length + 1) :][:-1])
            requests_by_tokens.setdefault(tokens, []).append(index)
            num_scored[tokens] = max(len(continuation), num_scored.get(tokens, 0))

        answers: list[Any] = [None] * len(requests)
        with evaluating(self.model):
            for reading in self._read(num_scored, keep_cache=False):
                log_probs = torch.log_softmax(reading.logits, dim=-1, dtype=self.softmax_dtype)
                for tokens, rows in zip(reading.sequences, reading.logit_rows, strict=True):
                    for index in requests_by_tokens[tokens]:
                        continuation = requests[index][2]
                        answer_rows = rows[-len(continuation) :]
                        answers[index] = score_continuation(log_probs[answer_rows], continuation)
        return answers

    # Written answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that greedy decoding writes after each prompt."""
        requests_by_settings: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            requests_by_settings.setdefault(repr(request.args[1]), []).append(index)

        answers: dict[int, str] = {}
        for indices in requests_by_settings.values():
            group = [requests[index] for index in indices]
            settings = normalize_gen_kwargs(group[0].args[1], self.max_gen_toks)
            if self._can_share() and self._is_greedy(settings):
                with evaluating(self.model):
                    texts = self._write([request.args[0] for request in group], settings)
            else:
                texts = super().generate_until(group, disable_tqdm)
            answers.update(zip(indices, texts, strict=True))
        return [answers[index] for index in range(len(requests))]

    def _write(self, prompts: list[str], settings: dict[str, Any]) -> list[str]:
        """Text after each prompt, up to a stop string, an end token or the limit of new tokens."""
        end_of_text = self.tok_decode(self.eot_token_id, False)
        until = handle_stop_sequences(settings["until"], eos=end_of_text)
        max_new_tokens = settings["max_gen_toks"]

        encoded: list[Tokens] = []
        for prompt in prompts:
            max_prompt = self.max_length - max_new_tokens
            ids, _ = self.tok_batch_encode([prompt], "left", max_prompt, self.truncation)
            encoded.append(tuple(ids[0].tolist()))

        longest = max(map(len, encoded)) + max_new_tokens
        batch_size = max(self.batch_size, CACHED_TOKENS // longest)
        read_prompts = self._read_prompts(encoded)
        texts: dict[Tokens, str] = {}
        while batch := list(islice(read_prompts, batch_size)):
            texts.update(self._continue(batch, until, settings))
        return [texts[tokens] for tokens in encoded]

    def _read_prompts(self, prompts: list[Tokens]) -> Iterator["ReadPrompt"]:
        """Each different prompt once, with its part of the cache it was read into."""
        for reading in self._read(dict.fromkeys(prompts, 1), keep_cache=True):
            rows = [row for (row,) in reading.logit_rows]  # of the one scored token
            for tokens, row, places in zip(
                reading.sequences, rows, reading.cache_places, strict=True
            ):
                layers = [taken(layer, places) for layer in reading.cache.layers]
                yield ReadPrompt(tokens, reading.logits[row], layers)

    @torch.no_grad()
    def _continue(
        self, prompts: list["ReadPrompt"], until: list[str], settings: dict[str, Any]
    ) -> dict[Tokens, str]:
        """Write after several prompts at once; a text that has ended leaves the batch."""
        max_new_tokens = settings["max_gen_toks"]
        end_tokens = self._end_tokens(settings)
        written: list[list[int]] = [[] for _ in prompts]
        batch = TextBatch(prompts, max_new_tokens)
        logits = torch.stack([prompt.logits for prompt in prompts]).float()  # (B, V)

        for step in range(max_new_tokens):
            if step < settings.get("min_new_tokens", 0):
                logits[:, end_tokens] = -torch.inf
            tokens = logits.argmax(-1).cpu()  # (B,)
            for text, token in zip(batch.texts, tokens.tolist(), strict=True):
                written[text].append(token)

            unfinished = [
                row
                for row, text in enumerate(batch.texts)
                if not self._has_ended(written[text], end_tokens, until)
            ]
            if not unfinished or step + 1 == max_new_tokens:
                break
            if len(unfinished) < len(batch.texts):
                batch.keep(unfinished)
                tokens = tokens[unfinished]
            batch.add_position()
            logits = self._next_logits(batch, tokens)

        texts: dict[Tokens, str] = {}
        for prompt, ids in zip(prompts, written, strict=True):
            texts[prompt.tokens] = postprocess_generated_text(self.tok_decode(ids), until, None)
        return texts

    def _next_logits(self, batch: "TextBatch", tokens: torch.Tensor) -> torch.Tensor:
        """Logits (B, V) after one more token (B,) of each text."""
        positions = batch.positions[:, -1:]  # (B, 1)
        distances = positions - batch.positions  # (B, S)
        output = self.model(
            input_ids=tokens[:, None].to(self.device),
            position_ids=positions.to(self.device),
            attention_mask=self._masks(batch.visible[:, None], distances[:, None]),
            past_key_values=batch.cache,
            use_cache=True,
        )
        return output.logits[:, -1].float()

    def _end_tokens(self, settings: dict[str, Any]) -> list[int]:
        """The tokens that end a text."""
        tokens = settings.get("eos_token_id", self.model.generation_config.eos_token_id)
        if isinstance(tokens, int):
            return [tokens]
        return list(tokens or ())

    def _has_ended(self, written: list[int], end_tokens: list[int], until: list[str]) -> bool:
        """Whether a text ends with an end token, or holds a stop string."""
        if written[-1] in end_tokens:
            return True
        text = self.tok_decode(written, skip_special_tokens=False)
        return any(stop in text for stop in until if stop)

    # What is left to HFLM

    def _can_share(self) -> bool:
        """Whether the model is of the usual build, and takes attention masks of our own."""
        config = self.model.config
        layer_types = getattr(config, "layer_types", None) or ()
        layers = getattr(self.model.get_decoder(), "layers", None) or ()
        return (
            self.backend == "causal"
            and config._attn_implementation in ("eager", "sdpa")
            and SUPPORTED_LAYERS.issuperset(layer_types)
            and len(layers) > 0
            and all(hasattr(layer, "self_attn") for layer in layers)
        )

    def _is_greedy(self, settings: dict[str, Any]) -> bool:
        """Whether the next token is the most likely one, and nothing else changes the logits."""
        defaults = self.model.generation_config.to_diff_dict()
        active = {name for name, value in defaults.items() if value not in (None, False, 1)}
        return (
            not settings.get("do_sample")
            and GREEDY_SETTINGS.issuperset(settings)
            and HARMLESS_DEFAULTS.issuperset(active)
        )

    # Forward passes

    @torch.no_grad()
    def _read(self, num_scored: dict[Tokens, int], keep_cache: bool) -> Iterator["Reading"]:
        """Read sequences, several in a pass, and score the last ``num_scored`` tokens of each."""
        for branches, num_cached, cache in self._passes(sorted_branches(num_scored)):
            tree = PackedTree(branches, num_cached)
            positions = tree.positions()  # (T,)
            masks = None  # a single sequence is causal without one
            if len(branches) > 1:
                distances = positions[:, None] - tree.key_positions()  # (T, S)
                masks = self._masks(tree.visible()[None], distances)

            scored_paths = [
                path[-branch.num_scored :]
                for branch, path in zip(branches, tree.paths, strict=True)
            ]
            scored_places = sorted({place for path in scored_paths for place in path})
            row_of = {place: row for row, place in enumerate(scored_places)}

            if cache is not None:
                cache = continued(cache)
            elif keep_cache:
                cache = DynamicCache()
            logits = self._logits(
                torch.tensor([tree.tokens]),
                positions[None],
                masks,
                cache,
                torch.tensor(scored_places),
            )
            yield Reading(
                sequences=[branch.tokens for branch in branches],
                logits=logits,
                logit_rows=[[row_of[place] for place in path] for path in scored_paths],
                cache=cache,
                cache_places=tree.cache_places(),
            )

    def _passes(
        self, branches: list["Branch"], num_cached: int = 0, cache: DynamicCache | None = None
    ) -> Iterator["Pass"]:
        """Split sorted branches into passes, each with a cache of what its branches begin with."""
        if fits(branches, num_cached):
            yield Pass(branches, num_cached, cache)
            return

        num_shared = min(branch.num_shared for branch in branches[1:])
        num_unscored = min(len(branch.tokens) - branch.num_scored for branch in branches)
        end = min(num_shared, num_unscored)
        if end - num_cached >= WORTH_CACHING:
            longer = self._extend(cache, branches[0].tokens[num_cached:end], num_cached)
            yield from self._passes(branches, end, longer)
            return

        group: list[Branch] = []  # as many limbs of the tree as fit in a pass
        for _, limb in groupby(branches, lambda branch: branch.tokens[: num_shared + 1]):
            limb = list(limb)
            if group and not fits(group + limb, num_cached):
                yield from self._passes(group, num_cached, cache)
                group = []
            group.extend(limb)
        yield from self._passes(group, num_cached, cache)

    def _extend(
        self, cache: DynamicCache | None, tokens: Sequence[int], num_cached: int
    ) -> DynamicCache:
        """A cache with more tokens in it; the one before stays as it is."""
        longer = DynamicCache() if cache is None else continued(cache)
        positions = num_cached + torch.arange(len(tokens))
        nowhere = torch.tensor([], dtype=torch.long)
        self._logits(torch.tensor([tokens]), positions[None], None, longer, nowhere)
        return longer

    def _logits(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        masks: Any,
        cache: DynamicCache | None,
        scored_places: torch.Tensor,
    ) -> torch.Tensor:
        """Logits (U, V) at some places of a sequence (1, T).

        Only these places enter the output head, and the layers on top that do not mix tokens.
        """
        scored_places = scored_places.to(self.device)

        def narrow(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            hidden_states = args[0]  # (1, T, d)
            scored = hidden_states[:, scored_places.to(hidden_states.device)]  # (1, U, d)
            return (scored, *args[1:]), kwargs

        layers = self.model.get_decoder().layers
        modules = [*layers, self.model.get_output_embeddings()]
        entrance = modules[num_mixing_layers(layers)]
        with entrance.register_forward_pre_hook(narrow, with_kwargs=True):
            output = self.model(
                input_ids=tokens.to(self.device),
                position_ids=positions.to(self.device),
                attention_mask=masks,
                past_key_values=cache,
                use_cache=cache is not None,
            )
        return output.logits[0]

    def _masks(self, visible: torch.Tensor, distances: torch.Tensor) -> Any:
        """Masks (B, 1, T, S) that are added to attention scores, as the model wants them.

        ``visible`` (B, T, S) says which keys a token may see, ``distances`` how far back they are.
        A model with several kinds of layers wants a dictionary, with one mask for each kind.
        """
        config = self.model.config
        layer_types = getattr(config, "layer_types", None)
        window = getattr(config, "sliding_window", None)
        if not layer_types:
            return self._mask(visible, distances, window)
        masks = {}
        for layer_type in set(layer_types):
            if layer_type == "sliding_attention":
                masks[layer_type] = self._mask(visible, distances, window)
            else:
                masks[layer_type] = self._mask(visible, distances, None)
        return masks

    def _mask(
        self, visible: torch.Tensor, distances: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """One of the masks: 0 for a visible key, the lowest number for any other."""
        if window is not None:
            visible = visible & (distances < window)
        mask = torch.zeros(visible.shape, dtype=self.model.dtype)
        mask = mask.masked_fill(~visible, torch.finfo(mask.dtype).min)
        return mask[:, None].to(self.device)  # (B, 1, T, S)


class Reading(NamedTuple):
    """What one forward pass found out about several sequences."""

    sequences: list[Tokens]
    logits: torch.Tensor  # (U, V)
    logit_rows: list[list[int]]  # of each sequence: the rows of ``logits`` at its scored tokens
    cache: DynamicCache | None
    cache_places: list[torch.Tensor]  # of each sequence: where its tokens are in the cache


class ReadPrompt(NamedTuple):
    """A prompt that was read, and can be continued."""

    tokens: Tokens
    logits: torch.Tensor  # (V,), at the last token
    layers: list[tuple[torch.Tensor, torch.Tensor]]  # keys and values (K, N, Dh) of each layer


def score_continuation(log_probs: torch.Tensor, continuation: list[int]) -> tuple[float, bool]:
    """Log-likelihood of a continuation of N tokens, and whether each is the likeliest one.

    ``log_probs`` (N, V) are those before each token.
    """
    target = torch.tensor(continuation, device=log_probs.device)
    log_likelihood = log_probs.gather(1, target[:, None]).sum()
    is_greedy = (log_probs.argmax(-1) == target).all()
    return float(log_likelihood), bool(is_greedy)


def num_mixing_layers(layers: nn.ModuleList) -> int:
    """How many layers, from the bottom, have to see all tokens.

    The layers above them have attention without queries and keys: a value projection and an output
    projection at most, as in a pruned model. They look at each token alone.
    """
    count = 0
    for index, layer in enumerate(layers):
        parts = {name for name, _ in layer.self_attn.named_children()}
        if not parts <= {"v_proj", "o_proj"}:
            count = index + 1
    return count


# The tree of tokens


class Branch(NamedTuple):
    """A sequence of tokens, from the root of the tree on; the last ``num_scored`` are scored."""

    tokens: Tokens
    num_scored: int
    num_shared: int  # how many tokens it begins with are those of the branch before it


class Pass(NamedTuple):
    """Branches that are read together, and a cache that holds what all of them begin with."""

    branches: list[Branch]
    num_cached: int  # tokens in the cache
    cache: DynamicCache | None


def sorted_branches(num_scored: dict[Tokens, int]) -> list[Branch]:
    """Sequences in an order in which those that begin alike stand side by side."""
    branches: list[Branch] = []
    previous: Tokens = ()
    for tokens in sorted(num_scored):
        branches.append(Branch(tokens, num_scored[tokens], common_length(previous, tokens)))
        previous = tokens
    return branches


def common_length(first: Tokens, second: Tokens) -> int:
    """How many tokens two sequences begin with in common."""
    length = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        length += 1
    return length


def fits(branches: list[Branch], num_cached: int) -> bool:
    """Whether branches can be read in one pass; a single branch always is."""
    if len(branches) == 1:
        return True
    num_new = len(branches[0].tokens) - num_cached
    for branch in branches[1:]:
        num_new += len(branch.tokens) - branch.num_shared
    return num_new <= TOKENS_PER_PASS


class PackedTree:
    """Branches one after another in one sequence of T tokens, which holds each token once.

    Attributes
    ----------
    tokens : list of int
        The sequence; tokens in the cache are left out.
    paths : list of list of int
        Of each branch, the places of its tokens in the sequence.
    """

    def __init__(self, branches: list[Branch], num_cached: int) -> None:
        self.num_cached = num_cached
        self.tokens: list[int] = []
        self.paths: list[list[int]] = []
        path: list[int] = []
        for branch in branches:
            if self.paths:
                path = path[: branch.num_shared - num_cached]
            new_tokens = branch.tokens[num_cached + len(path) :]
            first_place = len(self.tokens)
            path = path + list(range(first_place, first_place + len(new_tokens)))
            self.tokens.extend(new_tokens)
            self.paths.append(path)

    def positions(self) -> torch.Tensor:
        """Depth of each token in the tree (T,): its position in the sequence that it comes from."""
        positions = torch.zeros(len(self.tokens), dtype=torch.long)
        for path in self.paths:
            positions[torch.tensor(path)] = self.num_cached + torch.arange(len(path))
        return positions

    def key_positions(self) -> torch.Tensor:
        """Positions (S,) of the tokens in the cache and of those in the sequence."""
        return torch.cat([torch.arange(self.num_cached), self.positions()])

    def visible(self) -> torch.Tensor:
        """Which keys (T, S) each token sees: all in the cache, its ancestors, and itself."""
        num_keys = self.num_cached + len(self.tokens)
        visible = torch.zeros(len(self.tokens), num_keys, dtype=torch.bool)
        visible[:, : self.num_cached] = True
        for path in self.paths:
            places = torch.tensor(path)
            causal = torch.ones(len(path), len(path), dtype=torch.bool).tril()
            visible[places[:, None], self.num_cached + places] = causal
        return visible

    def cache_places(self) -> list[torch.Tensor]:
        """Where the tokens of each branch are in the cache, once the sequence has been read."""
        beginning = torch.arange(self.num_cached)
        return [torch.cat([beginning, self.num_cached + torch.tensor(path)]) for path in self.paths]


# Caches


def continued(cache: DynamicCache) -> DynamicCache:
    """A cache that begins with what ``cache`` holds, and leaves it as it is.

    No key or value is copied: a dynamic cache makes new tensors when tokens are added.
    """
    twin = copy.copy(cache)
    twin.layers = [copy.copy(layer) for layer in cache.layers]
    return twin


def taken(layer: CacheLayerMixin, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values (K, N, Dh) at some places of a cache layer."""
    if layer.keys.shape[-1] == 0:
        # Attention without keys: it only counts tokens, and not those that never entered the layer.
        return layer.keys[0, :, :0], layer.values[0, :, :0]
    places = places.to(layer.keys.device)
    return layer.keys[0][:, places], layer.values[0][:, places]


class TextBatch:
    """What the model has to know of B texts that are written side by side.

    Attributes
    ----------
    texts : list of int
        Which of the prompts the rows of the batch belong to.
    positions : torch.Tensor
        Position (B, S) of each key. Prompts are padded on the right, before what is written.
    visible : torch.Tensor
        Whether a key (B, S) is no padding.
    cache : DynamicCache
        Keys and values of all texts, with room for ``max_new_tokens``.
    """

    def __init__(self, prompts: list[ReadPrompt], max_new_tokens: int) -> None:
        self.texts = list(range(len(prompts)))
        self._lengths = torch.tensor([len(prompt.tokens) for prompt in prompts])  # (B,)
        longest = int(self._lengths.max())
        self.positions = torch.arange(longest).expand(len(prompts), -1)
        self.visible = self.positions < self._lengths[:, None]

        self.cache = DynamicCache()
        room = longest + max_new_tokens
        for parts in zip(*(prompt.layers for prompt in prompts), strict=True):
            keys = torch.stack([padded(keys, room) for keys, _ in parts])  # (B, K, room, Dh)
            values = torch.stack([padded(values, room) for _, values in parts])
            self.cache.layers.append(RoomyLayer(keys, values, longest))

    def keep(self, rows: list[int]) -> None:
        """Leave out the texts that have ended."""
        self.texts = [self.texts[row] for row in rows]
        self._lengths = self._lengths[rows]
        self.positions = self.positions[rows]
        self.visible = self.visible[rows]
        for layer in self.cache.layers:
            layer.batch_select_indices(rows)

    def add_position(self) -> None:
        """Make each text one token longer."""
        self.positions = torch.cat([self.positions, self._lengths[:, None]], dim=1)
        present = torch.ones(len(self.texts), 1, dtype=torch.bool)
        self.visible = torch.cat([self.visible, present], dim=1)
        self._lengths = self._lengths + 1


def padded(part: torch.Tensor, length: int) -> torch.Tensor:
    """Keys or values (K, N, Dh), filled up with zeros to (K, length, Dh)."""
    return F.pad(part, (0, 0, 0, length - part.shape[1]))


class RoomyLayer(CacheLayerMixin):
    """Keys and values of a layer, with room for more: new ones are written into it.

    A dynamic cache layer would copy all of them at every token. Keys of width 0, of attention
    that has none, are counted.
    """

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, num_tokens: int) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self._fill(num_tokens)

    def lazy_initialization(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Take tensors (B, K, room, Dh) to write into."""
        self.all_keys = keys
        self.all_values = values
        self.is_initialized = True

    def _fill(self, num_tokens: int) -> None:
        """Show the first ``num_tokens`` places, and no room."""
        self.num_tokens = num_tokens
        self.keys = self.all_keys[..., :num_tokens, :]
        self.values = self.all_values[..., :num_tokens, :]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the keys and values (B, K, N, Dh) of new tokens; return those of all tokens."""
        end = self.num_tokens + keys.shape[-2]
        self.all_keys[..., self.num_tokens : end, :] = keys
        self.all_values[..., self.num_tokens : end, :] = values
        self._fill(end)
        return self.keys, self.values

    def batch_select_indices(self, rows: list[int]) -> None:
        """Keep some texts of the batch."""
        self.all_keys = self.all_keys[rows]
        self.all_values = self.all_values[rows]
        self._fill(self.num_tokens)

    def get_seq_length(self) -> int:
        return self.num_tokens

    def get_max_length(self) -> int:
        return self.all_keys.shape[-2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.num_tokens + query_length, 0


# Speed on a CPU

# In float32 torch asks MKL, which does not use all that a processor has if it is not Intel's: up to
# twice as slow.
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Context in which ``model`` is in evaluation mode, with oneDNN for linear layers on a CPU."""
    training = model.training
    mode = OneDNN() if ONEDNN and model.device.type == "cpu" else nullcontext()
    model.eval()
    try:
        with mode:
            yield
    finally:
        model.train(training)


class OneDNN(TorchFunctionMode):
    """A mode of torch in which oneDNN multiplies by weights, where no gradient is wanted."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is not F.linear or kwargs or torch.is_grad_enabled():
            return function(*args, **kwargs)
        x, weight, *bias = args
        on_cpu = x.device.type == weight.device.type == "cpu"
        in_float32 = x.dtype == weight.dtype == torch.float32
        filled = x.numel() > 0 and weight.numel() > 0
        if not (on_cpu and in_float32 and filled and weight.is_contiguous()):
            return function(*args, **kwargs)
        if not bias:
            bias = [None]
        return torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, *bias, "none", [], "")
