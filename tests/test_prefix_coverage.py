"""PrefixLM is HFLM: over all arguments, settings of requests and edges of the context."""

import inspect

import pytest
from lm_eval.models.huggingface import HFLM
from lm_twins import (
    GREEDY,
    PAIRS,
    PROMPT,
    assert_equal,
    assert_same_outcome,
    outcome,
    requests_of,
    with_tokenizer,
)

from harp_lib.models.registry import tiny_tokenizer
from harp_lib.prefix_lm.coverage import unfollowed_argument
from harp_lib.prefix_lm.reader import TreeReader

SHORT_CONTEXT = 24

SETTINGS = [
    {"logits_cache": False},
    {"max_length": SHORT_CONTEXT},
    {"softmax_dtype": "float64"},
    {"mixed_precision_dtype": "bfloat16"},
    {"batch_size": 2},
    {"add_bos_token": True},
    {"prefix_token_id": 7},
    {"think_end_token": "a"},
]
"""What PrefixLM reads of HFLM's arguments, and two that it leaves to HFLM."""
NOT_FOLLOWED = {"mixed_precision_dtype", "think_end_token"}


@pytest.fixture
def trees_read(monkeypatch):
    """How many trees are read: an empty list that grows."""
    read = TreeReader.read
    trees = []

    def counting(self, *args, **kwargs):
        trees.append(args)
        return read(self, *args, **kwargs)

    monkeypatch.setattr(TreeReader, "read", counting)
    return trees


def test_arguments_that_are_not_followed_are_named():
    signature = inspect.signature(HFLM)
    given = signature.bind("model", attn_implementation="eager").arguments
    assert unfollowed_argument(signature, given) is None
    given = signature.bind("model", peft="adapter").arguments
    assert unfollowed_argument(signature, given) == "peft='adapter' was given"


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: next(iter(settings)))
def test_arguments_are_followed_as_by_stock(tiny, caplog, trees_read, settings):
    assert_equal(*with_tokenizer(tiny(), **settings))
    if settings.keys() <= NOT_FOLLOWED:
        [(name, value)] = settings.items()
        assert f"{name}={value!r} was given" in caplog.text
        assert not trees_read
    else:
        assert trees_read
        assert "leaves requests" not in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"until": ["e", "<eos>"]},
        {"until": [""]},
        {"max_gen_toks": None, "max_new_tokens": 3},
        {"temperature": 0.7},
        {"min_new_tokens": 4, "eos_token_id": [*range(3, 400)]},
        {"eos_token_id": 5},
    ],
)
def test_settings_of_requests_are_followed(tiny, trees_read, caplog, changes):
    model = tiny()
    assert_equal(*with_tokenizer(model), settings=GREEDY | changes)
    assert "leaves requests" not in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"until": None},
        {"until": ["e", 3]},
        {"do_sample": True, "temperature": 2.0},
        {"num_beams": 3},
        {"eos_token_id": [5, 600]},
        {"until": ["e"], "stop": "a"},
    ],
)
def test_settings_beyond_greedy_decoding_are_left_to_stock(tiny, trees_read, caplog, changes):
    stock, ours = with_tokenizer(tiny())
    for _ in range(2):
        assert_same_outcome(stock, ours, "generate_until", (PROMPT, GREEDY | changes))
    assert not trees_read
    assert caplog.text.count("leaves requests to lm-eval's own hf: a request has") == 1


@pytest.mark.parametrize(
    ("default", "is_followed"),
    [
        ({"temperature": 0.3, "do_sample": True, "top_k": 3}, True),
        ({"num_beams": 1, "repetition_penalty": 1.0, "output_scores": False}, True),
        ({"max_new_tokens": 12}, True),  # more than the request allows
        ({"cache_implementation": "static"}, True),
        ({"cache_implementation": "quantized"}, False),
        ({"min_new_tokens": 1, "eos_token_id": [*range(3, 400)]}, False),
        ({"repetition_penalty": 1.5}, False),
    ],
)
def test_defaults_of_the_model_are_followed_or_left_to_stock(
    tiny, trees_read, caplog, default, is_followed
):
    model = tiny()
    for name, value in default.items():
        setattr(model.generation_config, name, value)
    assert_same_outcome(*with_tokenizer(model), "generate_until", (PROMPT, GREEDY))
    assert bool(trees_read) == is_followed
    assert ("generation config has" in caplog.text) != is_followed


def test_the_cache_that_gemma_2_asks_for(tiny, trees_read, caplog):
    """As in its repositories."""
    model = tiny("tiny-gemma2")
    model.generation_config.cache_implementation = "hybrid"
    stock, ours = with_tokenizer(model)
    assert_same_outcome(stock, ours, "loglikelihood", *PAIRS)
    assert trees_read
    trees_read.clear()
    assert_same_outcome(stock, ours, "generate_until", (PROMPT, GREEDY))
    assert trees_read
    assert "leaves requests" not in caplog.text


def tokens_as_text(number):
    """A text of so many tokens, which does not end in a blank."""
    tokenizer = tiny_tokenizer()
    for start in range(100):
        words = [
            chr(97 + (7 * place) % 26) * (1 + place % 3) for place in range(start, 100 + start)
        ]
        ids = tokenizer(" ".join(words), add_special_tokens=False).input_ids[:number]
        text = tokenizer.decode(ids)
        if text == text.rstrip() and tokenizer(text, add_special_tokens=False).input_ids == ids:
            return text
    raise AssertionError("no such text")


@pytest.mark.parametrize("length", [SHORT_CONTEXT + beyond for beyond in (-1, 0, 1, 30)])
def test_the_edge_of_the_context(tiny, trees_read, length):
    """Texts that fit exactly, have a token of room, or are cut; and texts written after them."""
    text = tokens_as_text(length)
    models = with_tokenizer(tiny(), max_length=SHORT_CONTEXT)
    pairs = [(text, " e"), (text, " f"), (text[:-3], f"{text[-3:]} e f"), (text[:4], text[4:20])]
    for max_new_tokens in (1, SHORT_CONTEXT - 1):
        assert_equal(*models, pairs=pairs, settings=GREEDY | {"max_gen_toks": max_new_tokens})
    assert_same_outcome(*models, "loglikelihood_rolling", (text,), ("",))
    assert trees_read


@pytest.mark.parametrize("max_new_tokens", [SHORT_CONTEXT, 0])
def test_more_new_tokens_than_the_context_holds_are_refused_as_by_stock(tiny, max_new_tokens):
    stock, ours = with_tokenizer(tiny(), max_length=SHORT_CONTEXT)
    prompts = requests_of("generate_until", (PROMPT, GREEDY | {"max_gen_toks": max_new_tokens}))
    refusal = outcome(stock.generate_until, prompts)
    assert outcome(ours.generate_until, prompts) == refusal
    if max_new_tokens >= SHORT_CONTEXT:
        assert "must be less than model's maximum sequence length (24)" in refusal[1]


def test_a_prompt_without_tokens_is_left_to_stock(tiny, caplog):
    models = with_tokenizer(tiny())
    assert_same_outcome(*models, "generate_until", ("", GREEDY), (PROMPT, GREEDY))
    assert "a prompt has no token" in caplog.text


@pytest.mark.parametrize(
    ("pairs", "settings", "complaint"),
    [
        ([("a", tokens_as_text(25))], {}, "has 25 tokens and the model's context 24"),
        ([("a", "b"), (" ", "abc")], {}, "the context ' ' of 'abc' has no token: leave it empty"),
        (
            [("a b", "")],
            {},
            "the continuation '' of 'a b' has no token to score: leave the request",
        ),
        ([("a", "b"), ("a", "")], {"logits_cache": False}, "the continuation '' of 'a'"),
    ],
)
@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2"])
def test_what_stock_refuses_to_score_is_named(tiny, attention, pairs, settings, complaint):
    """Also where the model is left to stock."""
    model = tiny()
    stock, ours = with_tokenizer(model, max_length=SHORT_CONTEXT, **settings)
    requests = requests_of("loglikelihood", *pairs)
    with pytest.raises(AssertionError):
        stock.loglikelihood(requests, disable_tqdm=True)
    model.config._attn_implementation = attention
    with pytest.raises(ValueError, match=complaint):
        ours.loglikelihood(requests, disable_tqdm=True)


def test_an_empty_continuation_beside_one_of_a_token_has_stock_answers(tiny):
    stock, ours = with_tokenizer(tiny())
    pairs = [("a b c", ""), ("a b c", "d"), ("q", "r")]
    assert_same_outcome(stock, ours, "loglikelihood", *pairs)
    assert ours.loglikelihood(requests_of("loglikelihood", *pairs))[0] == (0.0, True)


def test_answers_are_stored_as_they_come(tiny):
    """lm-eval's cache of answers gets what HFLM stores in it."""
    stored = []
    for lm in with_tokenizer(tiny()):
        entries = {}
        lm.cache_hook.add_partial = lambda kind, args, answer, kept=entries: kept.update(
            {(kind, *map(str, args)): answer}
        )
        lm.loglikelihood(requests_of("loglikelihood", *PAIRS), disable_tqdm=True)
        lm.generate_until(requests_of("generate_until", (PROMPT, GREEDY)), disable_tqdm=True)
        stored.append(entries)
    assert stored[0].keys() == stored[1].keys()
    assert len(stored[0]) == len(PAIRS) + 1
