"""PrefixLM gives the answers of stock HFLM, for models of all kinds, choices and texts."""

import random

import pytest
import torch
from helpers import PLANS, VISION, pruned
from lm_twins import (
    PAIRS,
    PROMPT,
    WORDS,
    assert_equal,
    assert_same_outcome,
    random_model,
    requests_of,
    with_tokenizer,
)
from transformers import AutoConfig, AutoModelForSeq2SeqLM
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    create_causal_mask,
    create_chunked_causal_mask,
)
from transformers.models.llama import modeling_llama

from harp_lib.models.registry import SHAPE, tiny_tokenizer
from harp_lib.prefix_lm import lm, tree
from harp_lib.prefix_lm.cache import ReadPrompt, TextBatch


def random_text(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def choices(rng):
    """Contexts and continuations.

    Two questions after the same examples, with choices of several tokens; one with choices of a
    single token; a context to be cut; and pairs that begin like others.
    """
    examples = random_text(rng, 30)
    pairs = []
    for _ in range(2):
        question = f"{examples}\n\nQ: {random_text(rng, rng.randint(3, 12))}\nA:"
        for _ in range(3):
            pairs.append((question, f" {random_text(rng, rng.randint(1, 4))}"))
    letters = random_text(rng, 20)
    for letter in (" A", " B", " C"):
        pairs.append((letters, letter))
    pairs.append((random_text(rng, 200), " end"))
    pairs.extend([("", "x y"), ("a", "bc"), ("a", "bc d"), (examples, " stone")])
    return pairs


def prompts(rng):
    """Prompts and settings: stop strings, or end tokens that may not come first; one repeats."""
    examples = random_text(rng, 30)
    with_stop_strings = {"until": ["\n", "x"], "max_gen_toks": 6, "do_sample": False}
    with_end_tokens = {
        "until": [],
        "max_gen_toks": 5,
        "do_sample": False,
        "temperature": 1.0,
        "min_new_tokens": 2,
        "eos_token_id": [2, *range(10, 200)],
    }
    pairs = []
    for _ in range(2):
        prompt = f"{examples}\n{random_text(rng, rng.randint(1, 30))}"
        pairs.append((prompt, with_stop_strings))
    pairs.append((random_text(rng, rng.randint(1, 60)), with_end_tokens))
    pairs.append(pairs[0])
    return pairs


def assert_same_answers(model, seed):
    """PrefixLM finds HFLM's likelihoods and greedy choices, and writes the same texts."""
    stock, ours = with_tokenizer(model)  # one text at a time: padding changes what stock writes
    assert ours._can_share()
    rng = random.Random(seed)
    assert_same_outcome(stock, ours, "loglikelihood", *choices(rng))
    assert_same_outcome(stock, ours, "generate_until", *prompts(rng))
    assert not ours._warned_of, "nothing is left to HFLM"


@pytest.mark.parametrize(
    ("family", "plan", "tokens"),
    [
        *(("tiny-llama", plan, 32) for plan in PLANS),
        ("tiny-qwen2", "dense", 1024),
        ("tiny-gemma2", "dense", 32),
        ("tiny-gemma2", "thinned", 1024),
    ],
)
def test_answers_are_those_of_stock_lm_eval(tiny, monkeypatch, family, plan, tokens):
    monkeypatch.setattr(tree, "TOKENS_PER_PASS", tokens)
    monkeypatch.setattr(lm, "CACHED_TOKENS", 16 * tokens)
    assert_same_answers(pruned(tiny, family, plan), family + plan)


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
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("mistral", {"sliding_window": 9}),
        ("gemma3", GEMMA_3),
        ("gpt_oss", {"sliding_window": 9, "head_dim": 16, **EXPERTS}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
        ("phi3", TOKENS),  # without a ``k_proj``, but with attention all the same
    ],
)
def test_patterns_of_attention_are_the_models_own(monkeypatch, kind, settings):
    monkeypatch.setattr(tree, "TOKENS_PER_PASS", 64)
    assert_same_answers(random_model(kind, **settings), kind)


def chunks(config, **kwargs):
    config.attention_chunk_size = 7
    return create_chunked_causal_mask(config, **kwargs)


def every_third_token(**kwargs):
    def pattern(batch_idx, head_idx, q_idx, kv_idx):
        return (q_idx - kv_idx) % 3 == 0

    return create_causal_mask(**kwargs, and_mask_function=pattern)


@pytest.mark.parametrize("make_mask", [chunks, every_third_token])
def test_a_pattern_need_not_be_known(tiny, monkeypatch, make_mask):
    monkeypatch.setattr(tree, "TOKENS_PER_PASS", 64)
    monkeypatch.setattr(modeling_llama, "create_causal_mask", make_mask)
    assert_same_answers(tiny(), make_mask.__name__)


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 30,
}


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("phi3", {"rope_parameters": LONG_ROPE, **TOKENS}, "'longrope' depend on a text's length"),
        ("gpt_neo", {"attention_types": [[["local"], 3]], "num_layers": 3}, "no layers with"),
        (
            "granitemoehybrid",
            {"layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 8},
            "no layers with self_attn",
        ),
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


def test_attention_that_takes_no_masks_is_left_to_stock(tiny):
    model = tiny()
    _, ours = with_tokenizer(model)
    assert ours._can_share()
    model.config._attn_implementation = "flash_attention_2"
    assert not ours._can_share()


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
    assert_same_outcome(stock, ours, "loglikelihood", *PAIRS)
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
    _, ours = with_tokenizer(tiny("tiny-gemma2"))
    ours.loglikelihood(requests_of("loglikelihood", *PAIRS))
    assert dict(ALL_MASK_ATTENTION_FUNCTIONS) == before
    assert not ALL_MASK_ATTENTION_FUNCTIONS._local_mapping


def test_each_token_is_read_once_and_logits_are_few(tiny):
    model = tiny()
    num_read = []
    num_logits = []
    model.model.embed_tokens.register_forward_hook(
        lambda module, args, output: num_read.append(output.shape[1])
    )
    model.lm_head.register_forward_hook(
        lambda module, args, output: num_logits.append(output.shape[1])
    )
    _, ours = with_tokenizer(model)
    requests = requests_of("loglikelihood", *choices(random.Random(0))[:6])
    ours.loglikelihood(requests, disable_tqdm=True)  # and compares the model with its own pass
    num_read.clear()
    num_logits.clear()
    ours.loglikelihood(requests, disable_tqdm=True)

    beginnings = set()
    num_answer_tokens = 0
    for request in requests:
        context, continuation = ours._encode_pair(*request.args)
        tokens = (context + continuation)[:-1]
        beginnings.update(tuple(tokens[:end]) for end in range(1, len(tokens) + 1))
        num_answer_tokens += len(continuation)
    assert sum(num_read) == len(beginnings), "each different beginning is one token to read"
    assert sum(num_logits) <= num_answer_tokens


def test_texts_that_go_on_keep_their_keys_when_others_end():
    prompts = []
    for text in range(5):
        part = torch.full((1, text + 1, 2), float(text))  # (K, N, Dh)
        prompts.append(ReadPrompt(tuple(range(text + 1)), torch.zeros(3), [(part, -part)]))
    batch = TextBatch(prompts, max_new_tokens=3)
    order = batch.keep([1, 3, 4])
    assert order == batch.texts
    assert sorted(order) == [1, 3, 4]
    (layer,) = batch.cache.layers
    for row, text in enumerate(batch.texts):
        assert batch.visible[row].sum() == text + 1
        assert (layer.keys[row, :, : text + 1] == text).all()
        assert (layer.values[row, :, : text + 1] == -text).all()
