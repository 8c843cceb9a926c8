"""lm-eval's model, which reads what requests begin with once."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)

from .cache import ReadPrompt, TextBatch, taken
from .onednn import evaluating
from .reader import TreeReader
from .tree import Tokens

CACHED_TOKENS = 32_768  # in the caches of all texts that are written side by side

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


class PrefixLM(HFLM):
    """:class:`HFLM` for a decoder-only model in memory; what it cannot do faster, ``HFLM`` does."""

    # Likelihoods

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether greedy decoding would write it."""
        for request in requests:
            if request.args == ("", ""):
                raise empty_continuation_error("", "")
        return super().loglikelihood(requests, disable_tqdm)

    def _loglikelihood_tokens(
        self, requests: list, disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """As :meth:`loglikelihood`, of texts and their tokens: (texts, context, continuation)."""
        requests_by_tokens: dict[Tokens, list[int]] = {}
        num_scored: dict[Tokens, int] = {}
        for index, (_, context, continuation) in enumerate(requests):
            read_tokens = context + continuation[:-1]  # the last one is only scored
            tokens = tuple(read_tokens[-self.max_length :])
            requests_by_tokens.setdefault(tokens, []).append(index)
            num_scored[tokens] = max(len(continuation), num_scored.get(tokens, 0))
        for tokens, indices in requests_by_tokens.items():
            # As in HFLM, an empty continuation has an answer beside a longer one.
            if num_scored[tokens] == 0:
                raise empty_continuation_error(*(requests[indices[0]][0] or ("", "")))
        if not self._can_share():
            return super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)

        reader = TreeReader(self.model, self.device)
        answers: list[Any] = [None] * len(requests)
        with evaluating(self.model):
            for reading in reader.read(num_scored, keep_cache=False):
                log_probs = torch.log_softmax(reading.logits, dim=-1, dtype=self.softmax_dtype)
                for tokens, rows in zip(reading.sequences, reading.logit_rows, strict=True):
                    for index in requests_by_tokens[tokens]:
                        continuation = requests[index][2]
                        answer_rows = rows[len(rows) - len(continuation) :]
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
        batch_size = max(1, CACHED_TOKENS // longest)
        if self.batch_size != "auto":
            batch_size = max(self.batch_size, batch_size)
        read_prompts = self._read_prompts(encoded)
        texts: dict[Tokens, str] = {}
        while batch := list(islice(read_prompts, batch_size)):
            texts.update(self._continue(batch, until, settings))
        return [texts[tokens] for tokens in encoded]

    def _read_prompts(self, prompts: list[Tokens]) -> Iterator[ReadPrompt]:
        """Each different prompt once, with its part of the cache it was read into."""
        reader = TreeReader(self.model, self.device)
        for reading in reader.read(dict.fromkeys(prompts, 1), keep_cache=True):
            rows = [row for (row,) in reading.logit_rows]  # of the one scored token
            for tokens, row, places in zip(
                reading.sequences, rows, reading.cache_places, strict=True
            ):
                layers = [taken(layer, places) for layer in reading.cache.layers]
                yield ReadPrompt(tokens, reading.logits[row], layers)

    @torch.no_grad()
    def _continue(
        self, prompts: list[ReadPrompt], until: list[str], settings: dict[str, Any]
    ) -> dict[Tokens, str]:
        """Write after several prompts at once; a text that has ended leaves the batch."""
        max_new_tokens = settings["max_gen_toks"]
        end_tokens = self._end_tokens(settings)
        written: list[list[int]] = [[] for _ in prompts]
        reader = TreeReader(self.model, self.device)
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
            logits = reader.next_logits(batch, tokens)

        texts: dict[Tokens, str] = {}
        for prompt, ids in zip(prompts, written, strict=True):
            texts[prompt.tokens] = postprocess_generated_text(self.tok_decode(ids), until, None)
        return texts

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


def score_continuation(log_probs: torch.Tensor, continuation: list[int]) -> tuple[float, bool]:
    """Log-likelihood of a continuation of N tokens, and whether each is the likeliest one.

    ``log_probs`` (N, V) are those before each token.
    """
    target = torch.tensor(continuation, dtype=torch.long, device=log_probs.device)
    log_likelihood = log_probs.gather(1, target[:, None]).sum()
    is_greedy = (log_probs.argmax(-1) == target).all()
    return float(log_likelihood), bool(is_greedy)


def empty_continuation_error(context: str, continuation: str) -> ValueError:
    return ValueError(
        f"the continuation {continuation!r} of {context[-60:]!r} has no token to score: leave the "
        "request out, or give each choice of the task some text"
    )
