"""PrefixLM is HFLM: over all arguments, settings of requests, edges of the context and models."""

import inspect

import pytest
import torch
from helpers import VISION
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    create_causal_mask,
    create_chunked_causal_mask,
)
from transformers.models.llama import modeling_llama

from harp_lib.evaluation.runner import quiet_lm_eval
from harp_lib.models.registry import SHAPE, tiny_tokenizer
from harp_lib.prefix_lm import PrefixLM
from harp_lib.prefix_lm.coverage import FOLLOWED_ARGUMENTS, unfollowed_argument
from harp_lib.prefix_lm.reader import TreeReader

PROMPT = "def f(x): return the value of the object in a statement that follows it"
PAIRS = [(PROMPT, " and a name"), (PROMPT, " not"), (PROMPT[:40], " not"), ("", "a value")]
GREEDY = {"until": [], "max_gen_toks": 6, "do_sample": False}
SHORT_CONTEXT = 24

SETTINGS_BY_ARGUMENT = {
    "pretrained": {},
    "backend": {"backend": "causal"},
    "revision": {"revision": "v1"},
    "subfolder": {"subfolder": "part"},
    "tokenizer": {"tokenizer": tiny_tokenizer()},
    "truncation": {"truncation": True},
    "logits_cache": {"logits_cache": False},
    "max_length": {"max_length": SHORT_CONTEXT},
    "device": {"device": "cpu"},
    "dtype": {"dtype": "float64"},
    "softmax_dtype": {"softmax_dtype": "float64"},
    "mixed_precision_dtype": {"mixed_precision_dtype": "bfloat16"},
    "batch_size": {"batch_size": 2},
    "max_batch_size": {"batch_size": "auto", "max_batch_size": 1, "max_length": SHORT_CONTEXT},
    "trust_remote_code": {"trust_remote_code": True},
    "use_fast_tokenizer": {"use_fast_tokenizer": False},
    "add_bos_token": {"add_bos_token": True},
    "prefix_token_id": {"prefix_token_id": 7},
    "parallelize": {"parallelize": True},
    "max_memory_per_gpu": {"max_memory_per_gpu": "1GiB"},
    "max_cpu_memory": {"max_cpu_memory": "1GiB"},
    "offload_folder": {"offload_folder": "elsewhere"},
    "delta": {"delta": "part"},
    "think_end_token": {"think_end_token": "a"},
    "enable_thinking": {"enable_thinking": True, "think_end_token": "a"},
    "chat_template_args": {"chat_template_args": {"colour": "blue"}},
    "kwargs": {"attn_implementation": "eager"},
}
ELSEWHERE = {"tp_plan": "auto", "peft": "adapter", "autogptq": True, "gptqmodel": True}
"""Arguments for which more than one processor or another package is needed: HFLM follows them."""
ONLY_LOADING = {"gguf_file"}
"""Arguments that say which file is loaded, of a kind for which there is no small one."""


def requests_of(kind, *args):
    return [Instance(kind, {}, arguments, number) for number, arguments in enumerate(args)]


def outcome(method, requests):
    """The answers, or the error in their place."""
    torch.manual_seed(0)
    try:
        with quiet_lm_eval():
            return method(requests, disable_tqdm=True)
    except Exception as error:
        return type(error), str(error)


def assert_close(answers, expected):
    """Texts and refusals are equal; log-likelihoods are, to rounding."""
    if not isinstance(expected, list) or isinstance(expected[0], str):
        assert answers == expected
        return
    for answer, stock_answer in zip(answers, expected, strict=True):
        assert answer == pytest.approx(stock_answer, abs=1e-4)


def pair_of_models(pretrained, **settings):
    """HFLM and PrefixLM with the same arguments."""
    with quiet_lm_eval():
        return tuple(lm_class(pretrained, **settings) for lm_class in (HFLM, PrefixLM))


def with_tokenizer(model, **settings):
    return pair_of_models(model, tokenizer=tiny_tokenizer(), **{"add_bos_token": False} | settings)


def assert_equal(stock, ours, pairs=PAIRS, settings=GREEDY):
    """Both score and write the same."""
    rolling = requests_of("loglikelihood_rolling", (PROMPT,), (PROMPT[:20],))
    choices = requests_of("loglikelihood", *pairs)
    different_texts = dict.fromkeys(text for text, _ in pairs if text)
    prompts = requests_of("generate_until", *((text, settings) for text in different_texts))
    assert_close(
        outcome(ours.loglikelihood_rolling, rolling), outcome(stock.loglikelihood_rolling, rolling)
    )
    assert_close(outcome(ours.loglikelihood, choices), outcome(stock.loglikelihood, choices))
    assert_close(outcome(ours.generate_until, prompts), outcome(stock.generate_until, prompts))


def random_model(kind, **settings):
    """A random model whose logits are far apart, so that each difference shows."""
    particulars = {"vocab_size": 512, "num_hidden_layers": 3, "initializer_range": 0.2}
    config = AutoConfig.for_model(kind, **SHAPE | particulars | settings)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, _tiny_models):
    """A saved model, with another one in the subfolder ``part``."""
    root = tmp_path_factory.mktemp("model")
    for place, family in ((root, "tiny-llama"), (root / "part", "tiny-mistral")):
        _tiny_models[family].save_pretrained(place)
        tiny_tokenizer().save_pretrained(place)
    return root


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


def test_each_argument_of_hflm_is_known():
    names = set(inspect.signature(HFLM).parameters)
    assert names == SETTINGS_BY_ARGUMENT.keys() | ELSEWHERE.keys() | ONLY_LOADING
    assert names >= FOLLOWED_ARGUMENTS


@pytest.mark.parametrize("name", ELSEWHERE)
def test_arguments_for_other_machines_are_left_to_stock(name):
    signature = inspect.signature(HFLM)
    given = signature.bind("model", **{name: ELSEWHERE[name]}).arguments
    assert unfollowed_argument(signature, given) == f"{name}={ELSEWHERE[name]!r} was given"


@pytest.mark.parametrize("name", SETTINGS_BY_ARGUMENT)
def test_arguments_are_followed_as_by_stock(folder, monkeypatch, caplog, trees_read, name):
    monkeypatch.chdir(folder)
    settings = {"device": "cpu"} | SETTINGS_BY_ARGUMENT[name]
    assert_equal(*pair_of_models(str(folder), **settings))
    if name == "mixed_precision_dtype":
        assert "mixed_precision_dtype='bfloat16' was given" in caplog.text
        assert not trees_read
    else:
        assert trees_read
        assert "leaves requests" not in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"until": "e"},
        {"until": ["e", "<eos>"]},
        {"until": [""]},
        {"max_gen_toks": None, "max_new_tokens": 3},
        {"max_tokens": 2},
        {"max_gen_toks": 1},
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
        {"do_sample": None, "temperature": 2.0},
        {"num_beams": 3},
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 1},
        {"max_length": 20},
        {"eos_token_id": [5, 600]},
        {"min_new_tokens": None},
        {"until": ["e"], "stop": "a"},
    ],
)
def test_settings_beyond_greedy_decoding_are_left_to_stock(tiny, trees_read, caplog, changes):
    stock, ours = with_tokenizer(tiny())
    prompts = requests_of("generate_until", (PROMPT, GREEDY | changes))
    assert outcome(ours.generate_until, prompts) == outcome(stock.generate_until, prompts)
    outcome(ours.generate_until, prompts)
    assert not trees_read
    assert caplog.text.count("leaves requests to lm-eval's own hf: a request has") == 1


@pytest.mark.parametrize(
    ("default", "is_followed"),
    [
        ({"temperature": 0.3, "do_sample": True, "top_k": 3}, True),
        ({"num_beams": 1, "repetition_penalty": 1.0, "output_scores": False}, True),
        ({"max_new_tokens": 3}, False),
        ({"min_new_tokens": 1, "eos_token_id": [*range(3, 400)]}, False),
        ({"no_repeat_ngram_size": 1}, False),
        ({"repetition_penalty": 1.5}, False),
        ({"forced_eos_token_id": 1}, False),
        ({"return_dict_in_generate": True}, False),
    ],
)
def test_defaults_of_the_model_are_followed_or_left_to_stock(
    tiny, trees_read, caplog, default, is_followed
):
    model = tiny()
    for name, value in default.items():
        setattr(model.generation_config, name, value)
    stock, ours = with_tokenizer(model)
    prompts = requests_of("generate_until", (PROMPT, GREEDY))
    assert outcome(ours.generate_until, prompts) == outcome(stock.generate_until, prompts)
    assert bool(trees_read) == is_followed
    assert ("generation config has" in caplog.text) != is_followed


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


@pytest.mark.parametrize("length", [SHORT_CONTEXT + beyond for beyond in (-2, -1, 0, 1, 30)])
def test_the_edge_of_the_context(tiny, trees_read, length):
    """Texts that fit exactly, have a token of room, or are cut; and texts written after them."""
    text = tokens_as_text(length)
    models = with_tokenizer(tiny(), max_length=SHORT_CONTEXT)
    pairs = [(text, " e"), (text, " f"), (text[:-3], f"{text[-3:]} e f"), (text[:4], text[4:20])]
    for max_new_tokens in (1, SHORT_CONTEXT - 1):
        assert_equal(*models, pairs=pairs, settings=GREEDY | {"max_gen_toks": max_new_tokens})
    rolling = requests_of("loglikelihood_rolling", (text,), ("",))
    stock, ours = models
    assert_close(
        outcome(ours.loglikelihood_rolling, rolling), outcome(stock.loglikelihood_rolling, rolling)
    )
    assert trees_read


@pytest.mark.parametrize("max_new_tokens", [SHORT_CONTEXT, SHORT_CONTEXT + 9, 0, -1])
def test_more_new_tokens_than_the_context_holds_are_refused_as_by_stock(tiny, max_new_tokens):
    stock, ours = with_tokenizer(tiny(), max_length=SHORT_CONTEXT)
    prompts = requests_of("generate_until", (PROMPT, GREEDY | {"max_gen_toks": max_new_tokens}))
    refusal = outcome(stock.generate_until, prompts)
    assert outcome(ours.generate_until, prompts) == refusal
    if max_new_tokens >= SHORT_CONTEXT:
        assert "must be less than model's maximum sequence length (24)" in refusal[1]


def test_a_prompt_without_tokens_is_left_to_stock(tiny, caplog):
    stock, ours = with_tokenizer(tiny())
    prompts = requests_of("generate_until", ("", GREEDY), (PROMPT, GREEDY))
    assert outcome(ours.generate_until, prompts) == outcome(stock.generate_until, prompts)
    assert "a prompt has no token" in caplog.text


@pytest.mark.parametrize(
    ("pair", "settings", "complaint"),
    [
        (("a", tokens_as_text(SHORT_CONTEXT + 1)), {}, "has 25 tokens and the model's context 24"),
        ((" ", "abc"), {}, "the context ' ' of 'abc' has no token: leave it empty"),
        (("a", ""), {"logits_cache": False}, "the continuation '' of 'a' has no token"),
    ],
)
def test_what_stock_refuses_to_score_is_named(tiny, pair, settings, complaint):
    stock, ours = with_tokenizer(tiny(), max_length=SHORT_CONTEXT, **settings)
    requests = requests_of("loglikelihood", ("a", "b"), pair)
    with pytest.raises(AssertionError):
        stock.loglikelihood(requests, disable_tqdm=True)
    with pytest.raises(ValueError, match=complaint):
        ours.loglikelihood(requests, disable_tqdm=True)


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


GEMMA_3 = {
    "text_config": {
        **SHAPE,
        "vocab_size": 512,
        "num_hidden_layers": 3,
        "head_dim": 16,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "initializer_range": 0.2,
    },
    "vision_config": VISION,
    "mm_tokens_per_image": 4,
    "image_token_id": 511,
    "boi_token_id": 510,
    "eoi_token_id": 509,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gemma3", GEMMA_3),
        ("gpt_oss", {"sliding_window": 9, "head_dim": 16, **EXPERTS}),
        ("cohere2", {"sliding_window": 9}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    ],
)
def test_patterns_of_attention_are_the_models_own(trees_read, caplog, kind, settings):
    assert_equal(*with_tokenizer(random_model(kind, **settings)))
    assert trees_read
    assert "leaves requests" not in caplog.text


def chunks(config, **kwargs):
    config.attention_chunk_size = 7
    return create_chunked_causal_mask(config, **kwargs)


def every_third_token(**kwargs):
    def pattern(batch_idx, head_idx, q_idx, kv_idx):
        return (q_idx - kv_idx) % 3 == 0

    return create_causal_mask(**kwargs, and_mask_function=pattern)


@pytest.mark.parametrize("make_mask", [chunks, every_third_token])
def test_a_pattern_need_not_be_known(tiny, monkeypatch, trees_read, caplog, make_mask):
    monkeypatch.setattr(modeling_llama, "create_causal_mask", make_mask)
    assert_equal(*with_tokenizer(tiny()))
    assert trees_read
    assert "leaves requests" not in caplog.text


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 30,
}


TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("phi3", {"rope_parameters": LONG_ROPE, **TOKENS}, "'longrope' depend on a text's length"),
        ("gpt_neo", {"attention_types": [[["local"], 3]], "num_layers": 3}, "no layers with"),
        ("qwen3_next", {"head_dim": 16, "num_experts": 4}, "no layers with self_attn"),
        ("t5", {"d_model": 64, "d_kv": 16, "num_layers": 2, "num_heads": 4}, "'seq2seq'"),
    ],
)
def test_other_models_are_left_to_stock(caplog, kind, settings, reason):
    if kind == "t5":
        config = AutoConfig.for_model(kind, vocab_size=512, decoder_start_token_id=0, **settings)
        model = AutoModelForSeq2SeqLM.from_config(config).eval()
    else:
        model = random_model(kind, **settings)
    stock, ours = with_tokenizer(model)
    assert_equal(stock, ours)
    assert not ours._can_share()
    assert caplog.text.count(reason) == 1


def neighbours_enter(module, args, output):
    """A layer with a convolution that its class does not show."""
    return output + output.roll(1, dims=1)


def positions_are_counted(module, args, output):
    """A layer that adds where in the sequence a token stands, as some embeddings do."""
    return output + torch.arange(output.shape[1])[:, None] / 5


def texts_longer_than_a_limit_differ(module, args, output):
    """A layer with an effect that short texts do not show."""
    return output * (1 + (output.shape[1] > len(tiny_tokenizer()(PROMPT).input_ids) - 4))


def one_text_at_a_time(module, args, output):
    if len(output) > 1:
        raise IndexError("more than one text")


OTHER_LOGITS = "a tree of texts has other logits than the texts alone"


@pytest.mark.parametrize(
    ("effect", "reason"),
    [
        (neighbours_enter, OTHER_LOGITS),
        (positions_are_counted, OTHER_LOGITS),
        (texts_longer_than_a_limit_differ, OTHER_LOGITS),
        (one_text_at_a_time, "reading a tree ended in IndexError: more than one text"),
    ],
)
def test_a_model_that_reads_trees_otherwise_is_found_by_comparing(tiny, caplog, effect, reason):
    model = tiny()
    model.model.layers[2].register_forward_hook(effect)
    stock, ours = with_tokenizer(model)
    assert ours._can_share()
    choices = requests_of("loglikelihood", *PAIRS)
    assert_close(outcome(ours.loglikelihood, choices), outcome(stock.loglikelihood, choices))
    assert not ours._can_share()
    assert caplog.text.count(reason) == 1


def test_a_generate_with_ways_of_its_own_is_found_by_comparing(tiny, monkeypatch, caplog):
    """With its cache, a model may see less than in a forward pass."""
    model = tiny()
    generate = model.generate

    def unlikeliest_tokens(*args, **kwargs):
        with model.lm_head.register_forward_hook(lambda module, inputs, output: -output):
            return generate(*args, **kwargs)

    monkeypatch.setattr(model, "generate", unlikeliest_tokens)
    assert_equal(*with_tokenizer(model))
    assert caplog.text.count(OTHER_LOGITS) == 1


def test_masks_are_the_models_again_afterwards(tiny):
    before = dict(ALL_MASK_ATTENTION_FUNCTIONS)
    model = tiny("tiny-gemma2")
    with_tokenizer(model)[1].loglikelihood(requests_of("loglikelihood", *PAIRS))
    assert dict(ALL_MASK_ATTENTION_FUNCTIONS) == before
    assert not ALL_MASK_ATTENTION_FUNCTIONS._local_mapping
