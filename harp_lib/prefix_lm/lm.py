"""lm-eval's model, which reads what requests begin with once."""

import inspect
import logging
from collections.abc import Iterable
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
from lm_eval.models.utils_hf import stop_sequences_criteria
from transformers import StoppingCriteriaList

from .cache import ReadPrompt, TextBatch
from .coverage import (
    active_default,
    unfollowed_argument,
    unfollowed_setting,
    unsuitable_build,
)
from .onednn import by_onednn
from .reader import TreeReader
from .tree import Tokens
from .trial import tree_failure

CACHED_TOKENS = 32_768  # in the caches of all texts that are written side by side

logger = logging.getLogger(__name__)


class PrefixLM(HFLM):
    """:class:`HFLM` for a decoder-only model, faster where that is known to give the same answers.

    Arguments, settings of requests and models that are not known to be covered are left to
    ``HFLM``'s own code, and a warning says so once. A model is compared with its own forward pass,
    or its own ``generate``, on the longest of the texts (at most 1,024 tokens) before it reads them
    as a tree: once for each way in which the model is built, and again for longer texts.

    Parameters
    ----------
    pretrained : str or PreTrainedModel
    *args, **kwargs
        As for ``HFLM``.
    """

    def __init__(self, pretrained: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(pretrained, *args, **kwargs)
        signature = inspect.signature(HFLM)
        given = signature.bind(pretrained, *args, **kwargs).arguments
        self._fallback_reason = unfollowed_argument(signature, given)
        if self.backend != "causal":
            self._fallback_reason = f"the backend is {self.backend!r}"
        self._warned_of: set[str] = set()

    # Likelihoods

    def _loglikelihood_tokens(
        self, requests: list, disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether greedy decoding would write it.

        A request is texts and their tokens: ((context, continuation), context, continuation).
        """
        requests_by_tokens: dict[Tokens, list[int]] = {}
        num_scored: dict[Tokens, int] = {}
        for index, (_, context, continuation) in enumerate(requests):
            tokens = self._read_tokens(context, continuation)
            requests_by_tokens.setdefault(tokens, []).append(index)
            num_scored[tokens] = max(len(continuation), num_scored.get(tokens, 0))
        self._check_tokens(requests, num_scored)
        if not self._can_share(num_scored):
            return super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)

        reader = TreeReader(self.model, self.device)
        answers: list[Any] = [None] * len(requests)
        with by_onednn(self.model):
            for reading in reader.read(num_scored, keep_cache=False):
                log_probs = torch.log_softmax(reading.logits, dim=-1, dtype=self.softmax_dtype)
                for tokens, rows in zip(reading.sequences, reading.logit_rows, strict=True):
                    for index in requests_by_tokens[tokens]:
                        texts, _, continuation = requests[index]
                        answer_rows = rows[len(rows) - len(continuation) :]
                        answer = score_continuation(log_probs[answer_rows], continuation)
                        answers[index] = answer
                        if texts is not None:  # as they are in loglikelihood_rolling
                            self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers

    def _read_tokens(self, context: list[int], continuation: list[int]) -> Tokens:
        """The tokens that the model reads: the last one of a continuation is only scored."""
        tokens = context + continuation[:-1]
        return tuple(tokens[-self.max_length :])

    def _check_tokens(self, requests: list, num_scored: dict[Tokens, int]) -> None:
        """Name the first request that HFLM refuses to score, by an assertion without a message."""
        for texts, context, continuation in requests:
            context_text, continuation_text = texts or ("", "")
            if not context:
                raise ValueError(
                    f"the context {context_text!r} of {continuation_text[:60]!r} has no token: "
                    "leave it empty, so that lm-eval begins with the token that begins a text"
                )
            num_tokens = len(continuation)
            if num_tokens > self.max_length:
                raise ValueError(
                    f"the continuation {continuation_text[:60]!r} has {num_tokens} tokens and the "
                    f"model's context {self.max_length} (max_length): shorten it"
                )
            if self.backend == "causal" and self.logits_cache:
                # As in HFLM, an empty continuation has an answer beside a longer one.
                num_tokens = num_scored[self._read_tokens(context, continuation)]
            if num_tokens == 0:
                raise ValueError(
                    f"the continuation {continuation_text!r} of {context_text[-60:]!r} has no "
                    "token to score: leave the request out, or give each choice of the task some "
                    "text"
                )

    # Written answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that greedy decoding writes after each prompt."""
        requests_by_settings: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            requests_by_settings.setdefault(repr(request.args[1]), []).append(index)

        answers: dict[int, str] = {}
        for indices in requests_by_settings.values():
            group = [requests[index] for index in indices]
            texts = self._write([request.args[0] for request in group], group[0].args[1])
            if texts is None:
                texts = super().generate_until(group, disable_tqdm)
            answers.update(zip(indices, texts, strict=True))
        return [answers[index] for index in range(len(requests))]

    def _write(self, prompts: list[str], gen_kwargs: dict[str, Any]) -> list[str] | None:
        """Text after each prompt, up to a stop string, an end token or the limit of new tokens.

        None where that is left to HFLM.
        """
        if not isinstance(gen_kwargs, dict) or not self._can_share():
            return None
        settings = normalize_gen_kwargs(gen_kwargs, self.max_gen_toks)
        max_new_tokens = settings["max_gen_toks"]
        max_prompt = self.max_length - max_new_tokens
        if max_prompt < 1:
            return None  # HFLM refuses it
        encoded: list[Tokens] = []
        for prompt in prompts:
            ids, _ = self.tok_batch_encode([prompt], "left", max_prompt, self.truncation)
            encoded.append(tuple(ids[0].tolist()))
        if not self._can_write(settings, encoded):
            return None

        end_of_text = self.tok_decode(self.eot_token_id, False)
        until = handle_stop_sequences(settings["until"], eos=end_of_text)
        longest = max(map(len, encoded)) + self._length_limit(settings)
        batch_size = max(1, CACHED_TOKENS // longest)
        if self.batch_size != "auto":
            batch_size = max(self.batch_size, batch_size)
        texts: dict[Tokens, str] = {}
        with by_onednn(self.model):
            read_prompts = TreeReader(self.model, self.device).read_prompts(encoded)
            while batch := list(islice(read_prompts, batch_size)):
                texts.update(self._continue(batch, until, settings))
        answers = [texts[tokens] for tokens in encoded]
        for prompt, answer in zip(prompts, answers, strict=True):
            self.cache_hook.add_partial("generate_until", (prompt, gen_kwargs), answer)
        return answers

    @torch.no_grad()
    def _continue(
        self, prompts: list[ReadPrompt], until: list[str], settings: dict[str, Any]
    ) -> dict[Tokens, str]:
        """Write after several prompts at once; a text that has ended leaves the batch."""
        max_new_tokens = self._length_limit(settings)
        end_tokens = self._end_tokens(settings)
        written: list[list[int]] = [[] for _ in prompts]
        stops = [stop_sequences_criteria(self.tokenizer, until, 0, 1) for _ in prompts]
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
                if not has_ended(written[text], end_tokens, stops[text])
            ]
            if not unfinished or step + 1 == max_new_tokens:
                break
            if len(unfinished) < len(batch.texts):
                rows = batch.keep(unfinished)
                tokens = tokens[rows]
            batch.add_position()
            logits = reader.next_logits(batch, tokens)

        texts: dict[Tokens, str] = {}
        for prompt, ids in zip(prompts, written, strict=True):
            texts[prompt.tokens] = postprocess_generated_text(self.tok_decode(ids), until, None)
        return texts

    def _length_limit(self, settings: dict[str, Any]) -> int:
        """How many tokens may be written: as in HFLM, what the model's config says goes first."""
        return self.model.generation_config.max_new_tokens or settings["max_gen_toks"]

    def _end_tokens(self, settings: dict[str, Any]) -> list[int]:
        """The tokens that end a text."""
        tokens = settings.get("eos_token_id", self.model.generation_config.eos_token_id)
        if isinstance(tokens, int):
            return [tokens]
        return list(tokens or ())

    # What is left to HFLM

    def _can_share(self, texts: Iterable[Tokens] = (), is_writing: bool = False) -> bool:
        """Whether texts can be read as a tree; where not, a warning says once why."""
        reason = self._fallback_reason or unsuitable_build(self.model)
        if reason is None:
            longest = max(texts, key=len, default=())
            reason = tree_failure(self.model, self.device, longest, is_writing)
        if reason is not None:
            self._warn_once(reason)
        return reason is None

    def _can_write(self, settings: dict[str, Any], prompts: list[Tokens]) -> bool:
        """Whether texts can be written after prompts with these settings, as lm-eval has them."""
        vocabulary_size = self.model.config.get_text_config().vocab_size
        reason = unfollowed_setting(settings, vocabulary_size) or active_default(self.model)
        if settings["max_gen_toks"] < 1:
            reason = "a request allows no new token"
        if not all(prompts):
            reason = "a prompt has no token"
        if reason is None:
            return self._can_share(prompts, is_writing=True)
        self._warn_once(reason)
        return False

    def _warn_once(self, reason: str) -> None:
        if reason not in self._warned_of:
            self._warned_of.add(reason)
            logger.warning("hf-prefix leaves requests to lm-eval's own hf: %s", reason)


def has_ended(written: list[int], end_tokens: list[int], stops: StoppingCriteriaList) -> bool:
    """Whether a text ends with an end token, or lm-eval has seen a stop string in it."""
    return written[-1] in end_tokens or bool(stops(torch.tensor([written]), None))


def score_continuation(log_probs: torch.Tensor, continuation: list[int]) -> tuple[float, bool]:
    """Log-likelihood of a continuation of N tokens, and whether each is the likeliest one.

    ``log_probs`` (N, V) are those before each token.
    """
    target = torch.tensor(continuation, dtype=torch.long, device=log_probs.device)
    log_likelihood = log_probs.gather(1, target[:, None]).sum()
    is_greedy = (log_probs.argmax(-1) == target).all()
    return float(log_likelihood), bool(is_greedy)
