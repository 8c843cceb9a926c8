"""lm-eval's Hugging Face model, with what requests begin with computed once; scores are those of
HFLM, to rounding.

The tokens of all requests form a tree: few-shot examples, then questions, then choices. What many
branches share is read into a KV cache, which is continued; the rest some hundred tokens at a time,
each once, as one sequence in which every token sees its ancestors alone. Logits are computed where
an answer is scored, not at every position.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice, pairwise, takewhile
from operator import eq
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
from transformers import DynamicCache

from harp_lib.accounting import attention_window
from harp_lib.evaluation.timing import continued
from harp_lib.models.load import evaluating
from harp_lib.pruning.layers import LengthLayer

TOKENS_PER_PASS = 1024  # of the tree, besides what the cache holds
TOKENS_AT_ONCE = 32_768  # that caches hold while answers are written after several prompts at once
WORTH_CACHING = 16  # tokens
GREEDY = {
    "until",
    "max_gen_toks",
    "do_sample",
    "temperature",
    "eos_token_id",
    "min_new_tokens",
}  # of a request
HARMLESS = {
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "do_sample",
    "temperature",
    "top_p",
    "top_k",
    "use_cache",
}
HARMLESS |= {
    "transformers_version",
    "_from_model_config",
    "max_length",
    "max_new_tokens",
}  # of a model, if greedy


class Leaf(NamedTuple):
    """A sequence of tokens, of which the last ``scored`` are read for their logits."""

    tokens: tuple[int, ...]
    scored: int
    shared: int  # with the leaf before it, where they are sorted


class PrefixLM(HFLM):
    """:class:`HFLM` for a decoder-only model in memory; what it cannot do faster, ``HFLM`` does."""

    def _loglikelihood_tokens(
        self, requests: list, disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list:
        if not self._can_share():
            return super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)
        asked: dict[tuple[int, ...], list[int]] = {}  # what is read → the requests that need it
        for number, (_, context, continuation) in enumerate(requests):
            asked.setdefault(
                tuple((context + continuation)[-(self.max_length + 1) :][:-1]), []
            ).append(number)
        answers: list[Any] = [None] * len(requests)
        scored = {
            tokens: max(len(requests[number][2]) for number in numbers)
            for tokens, numbers in asked.items()
        }
        with evaluating(self.model):
            for found, logits, _ in self._read(scored, keep_cache=False):
                scores = torch.log_softmax(logits, dim=-1, dtype=self.softmax_dtype)  # (U, V)
                for tokens, rows, _ in found:
                    for number in asked[tokens]:
                        wanted = torch.tensor(requests[number][2], device=scores.device)
                        part = scores[rows[-len(wanted) :]]
                        likelihood = float(part.gather(1, wanted[:, None]).sum())
                        answers[number] = likelihood, bool((part.argmax(-1) == wanted).all())
        return answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(number)
        answers: dict[int, str] = {}
        for numbers in groups.values():
            wanted = [requests[number] for number in numbers]
            settings = normalize_gen_kwargs(wanted[0].args[1], self.max_gen_toks)
            if self._can_share() and self._is_greedy(settings):
                with evaluating(self.model):
                    texts = self._write([request.args[0] for request in wanted], settings)
            else:
                texts = super().generate_until(wanted, disable_tqdm)
            answers |= zip(numbers, texts, strict=True)
        return [answers[number] for number in range(len(requests))]

    def _can_share(self) -> bool:
        """Whether the model takes masks of our own."""
        kinds = set(getattr(self.model.config, "layer_types", None) or ())
        known = kinds <= {"full_attention", "sliding_attention"}
        return (
            known
            and self.backend == "causal"
            and self.model.config._attn_implementation in ("eager", "sdpa")
        )

    def _is_greedy(self, settings: dict[str, Any]) -> bool:
        """Whether the next token is the most likely one, and nothing else."""
        default = self.model.generation_config.to_diff_dict()
        own = {key for key, value in default.items() if value not in (None, False, 1)}
        return not settings.get("do_sample") and settings.keys() <= GREEDY and own <= HARMLESS

    @torch.no_grad()
    def _read(self, scored: dict[tuple[int, ...], int], keep_cache: bool) -> Iterator[tuple]:
        """Read sequences, some at a time: (tokens, rows of the logits, places in the cache)s,
        logits, cache.
        """
        order = sorted(scored)
        shared = [0, *(sum(takewhile(bool, map(eq, *pair))) for pair in pairwise(order))]
        leaves = [
            Leaf(tokens, scored[tokens], same) for tokens, same in zip(order, shared, strict=True)
        ]
        for chunk, start, cache in passes(leaves, self._extend):
            ids, paths = [], []
            for leaf in chunk:
                path = paths[-1][: leaf.shared - start] if paths else []
                new = leaf.tokens[start + len(path) :]
                paths.append([*path, *range(len(ids), len(ids) + len(new))])
                ids += new
            before, depths = torch.arange(start), torch.zeros(len(ids), dtype=torch.long)
            seen = (torch.arange(start + len(ids)) < start).repeat(
                len(ids), 1
            )  # (T, S): what the cache holds, all see
            for path in map(torch.tensor, paths):
                depths[path] = start + torch.arange(len(path))
                seen[path[:, None], start + path] = torch.ones(
                    len(path), len(path), dtype=torch.bool
                ).tril()
            masks = None  # one sequence alone needs none
            if len(chunk) > 1:
                masks = self._masks(seen[None], depths[:, None] - torch.cat([before, depths]))
            ends = [path[-leaf.scored :] for leaf, path in zip(chunk, paths, strict=True)]
            wanted = sorted({node for nodes in ends for node in nodes})
            cache = continued(cache) if cache else DynamicCache() if keep_cache else None
            logits = self._logits(
                torch.tensor([ids]), depths[None], masks, cache, torch.tensor(wanted)
            )  # (U, V)
            rows = [[wanted.index(node) for node in nodes] for nodes in ends]
            places = [torch.cat([before, start + torch.tensor(path)]) for path in paths]
            yield (
                list(zip([leaf.tokens for leaf in chunk], rows, places, strict=True)),
                logits,
                cache,
            )

    def _logits(
        self,
        ids: torch.Tensor,
        depths: torch.Tensor,
        masks: Any,
        cache: DynamicCache | None,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        """Logits (U, V) at some positions of a sequence. Value-only layers on top see these
        positions alone.
        """
        layers, wanted = self.model.get_decoder().layers, wanted.to(self.device)
        # From here on no attention has keys, so that no token needs another one.
        first = max(
            (i + 1 for i, layer in enumerate(layers) if hasattr(layer.self_attn, "k_proj")),
            default=0,
        )

        def narrow(_: object, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            return (args[0][:, wanted.to(args[0].device)], *args[1:]), kwargs

        options = {
            "input_ids": ids.to(self.device),
            "position_ids": depths.to(self.device),
            "attention_mask": masks,
        }
        with [*layers, self.model.get_output_embeddings()][first].register_forward_pre_hook(
            narrow, with_kwargs=True
        ):
            return self.model(**options, past_key_values=cache, use_cache=cache is not None).logits[
                0
            ]

    def _extend(
        self, cache: DynamicCache | None, tokens: Sequence[int], start: int
    ) -> DynamicCache:
        """A cache with more tokens in it; the one before stays as it is."""
        cache, depths = (
            continued(cache) if cache else DynamicCache(),
            start + torch.arange(len(tokens))[None],
        )
        self._logits(
            torch.tensor([tokens]), depths, None, cache, wanted=torch.tensor([], dtype=torch.long)
        )
        return cache

    def _masks(self, seen: torch.Tensor, distances: torch.Tensor) -> Any:
        """What is added to attention scores, (B, 1, T, S), as the model wants it: once, or for each
        kind of layer.
        """
        config, kinds = self.model.config, getattr(self.model.config, "layer_types", None)

        def mask(window: int | None) -> torch.Tensor:
            inside = seen if window is None else seen & (distances < window)
            added = torch.zeros(inside.shape, dtype=self.model.dtype)
            return added.masked_fill(~inside, torch.finfo(added.dtype).min)[:, None].to(self.device)

        if not kinds:
            return mask(attention_window(config, 0))
        return {kind: mask(attention_window(config, kinds.index(kind))) for kind in set(kinds)}

    def _write(self, prompts: list[str], settings: dict[str, Any]) -> list[str]:
        """The most likely text after each prompt, up to a stop string, an end token or the limit of
        new tokens.
        """
        until = handle_stop_sequences(
            settings["until"], eos=self.tok_decode(self.eot_token_id, False)
        )
        room = self.max_length - settings["max_gen_toks"]
        encoded = (
            self.tok_batch_encode([prompt], "left", room, self.truncation)[0][0]
            for prompt in prompts
        )
        encoded = [tuple(ids.tolist()) for ids in encoded]
        # of a prompt: its tokens, their keys and values in each layer, the logits (V,) at its end
        entries = (
            (tokens, [_taken(layer, places) for layer in cache.layers], logits[n])
            for found, logits, cache in self._read(dict.fromkeys(encoded, 1), keep_cache=True)
            for tokens, (n,), places in found
        )
        longest, texts = max(map(len, encoded)) + settings["max_gen_toks"], {}
        while batch := list(islice(entries, max(self.batch_size, TOKENS_AT_ONCE // longest))):
            texts |= self._continue(batch, until, settings)
        return [texts[tokens] for tokens in encoded]

    @torch.no_grad()
    def _continue(
        self, rows: list, until: list[str], settings: dict[str, Any]
    ) -> dict[tuple[int, ...], str]:
        """Write after several prompts at once; one that has ended leaves the batch."""
        ends = settings.get("eos_token_id", self.model.generation_config.eos_token_id)
        ends = [ends] if isinstance(ends, int) else list(ends or ())
        prompts, entries, logits = zip(*rows, strict=True)
        logits, written = torch.stack(logits).float(), [[] for _ in rows]  # (B, V)
        lengths, alive = torch.tensor([*map(len, prompts)]), list(range(len(rows)))
        places = torch.arange(int(lengths.max())).expand(len(rows), -1)  # (B, S)
        cache = _joined(entries, places.shape[1], settings["max_gen_toks"])
        seen = places < lengths[:, None]
        for step in range(settings["max_gen_toks"]):
            if step < settings.get("min_new_tokens", 0):
                logits[:, ends] = -torch.inf
            tokens = logits.argmax(-1).cpu()
            for row, token in zip(alive, tokens.tolist(), strict=True):
                written[row].append(token)
            keep = [
                i for i, row in enumerate(alive) if not self._has_ended(written[row], ends, until)
            ]
            if not keep or step + 1 == settings["max_gen_toks"]:
                break
            if len(keep) < len(alive):
                alive = [alive[i] for i in keep]
                lengths, places, seen, tokens = (
                    tensor[keep] for tensor in (lengths, places, seen, tokens)
                )
                for layer in cache.layers:
                    layer.hold([part[keep] for part in layer.parts], layer.held)
            places = torch.cat([places, (lengths + step)[:, None]], dim=1)
            seen = torch.cat([seen, torch.ones(len(alive), 1, dtype=torch.bool)], dim=1)
            options = {
                "input_ids": tokens[:, None].to(self.device),
                "position_ids": places[:, -1:].to(self.device),
            }
            masks = self._masks(seen[:, None], (places[:, -1:] - places)[:, None])
            logits = self.model(
                **options, attention_mask=masks, past_key_values=cache, use_cache=True
            ).logits[:, -1]
            logits = logits.float()
        texts = [postprocess_generated_text(self.tok_decode(ids), until, None) for ids in written]
        return dict(zip(prompts, texts, strict=True))

    def _has_ended(self, written: list[int], ends: list[int], until: list[str]) -> bool:
        text = self.tok_decode(written, skip_special_tokens=False)
        return written[-1] in ends or any(stop in text for stop in until if stop)


def passes(
    leaves: list[Leaf],
    extend: Callable[..., DynamicCache],
    start: int = 0,
    cache: DynamicCache | None = None,
) -> Iterator[tuple]:
    """Sorted leaves, as many as fit in a pass; how many of their tokens a cache holds; the cache."""

    def fits(leaves: list[Leaf]) -> bool:
        new = (
            len(leaves[0].tokens)
            - start
            + sum(len(leaf.tokens) - leaf.shared for leaf in leaves[1:])
        )
        return len(leaves) == 1 or new <= TOKENS_PER_PASS

    if not fits(leaves):
        shared = min(leaf.shared for leaf in leaves[1:])
        end = min(shared, *(len(leaf.tokens) - leaf.scored for leaf in leaves))
        if end - start >= WORTH_CACHING:
            cache, start = extend(cache, leaves[0].tokens[start:end], start), end
    if fits(leaves):
        yield leaves, start, cache
        return
    held: list[Leaf] = []
    for _, group in groupby(leaves, lambda leaf: leaf.tokens[: shared + 1]):
        branch = list(group)
        if held and not fits(held + branch):  # as many branches in a pass as fit
            yield from passes(held, extend, start, cache)
            held = []
        held += branch
    yield from passes(held, extend, start, cache)


def _taken(layer: Any, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values (K, N, Dh) at some places of a cache; none of a layer that has none and only
    counts.
    """
    places = places.to(layer.keys.device) if layer.keys.shape[-1] else slice(0)
    return layer.keys[0][:, places], layer.values[0][:, places]


class Roomy(LengthLayer):
    """Keys and values (B, K, S, Dh) with room for more: what is new is written, where a dynamic
    cache copies all.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, held: int) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.hold((keys, values), held)

    def hold(self, parts: Sequence[torch.Tensor], held: int) -> None:
        self.parts, self.held = parts, held
        self.keys, self.values = (part[..., :held, :] for part in parts)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        held = self.held + keys.shape[-2]
        for part, new in zip(self.parts, (keys, values), strict=True):
            part[..., self.held : held, :] = new
        self.hold(self.parts, held)
        return self.keys, self.values


def _joined(rows: Sequence[list[tuple]], length: int, room: int) -> DynamicCache:
    """One cache (B, K, N, Dh) of several sequences, filled up on the right, with room for more
    tokens.
    """
    joined = DynamicCache()
    for index in range(len(rows[0])):
        parts = zip(*(row[index] for row in rows), strict=True)
        parts = [
            torch.stack([F.pad(one, (0, 0, 0, length + room - one.shape[1])) for one in part])
            for part in parts
        ]
        joined.layers.append(Roomy(*parts, length))
    return joined
