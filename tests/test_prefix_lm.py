"""PrefixLM gives the answers of stock HFLM, for whole and pruned models, choices and texts."""

import ast
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoConfig, AutoModelForCausalLM

from harp_lib import PruningPlan, apply_plan, prefix_lm
from harp_lib.evaluation.runner import quiet_lm_eval
from harp_lib.models.registry import SHAPE, tiny_tokenizer
from harp_lib.prefix_lm import PrefixLM, lm, tree
from harp_lib.pruning.plan import LayerPlan

WORDS = [
    "river",
    "stone",
    "lantern",
    "orchard",
    "copper",
    "meadow",
    "harbour",
    "window",
    "saddle",
    "thunder",
]
PLANS = {
    "dense": {},
    "top value-only and skipped": {5: LayerPlan(0.8), 4: LayerPlan(0.0)},
    "first value-only": {0: LayerPlan(0.5), 3: LayerPlan(0.5)},
    "all value-only": {layer: LayerPlan(0.5) for layer in range(6)},
    "thinned": {
        0: LayerPlan(removed_groups=(0,)),
        2: LayerPlan(removed_groups=(0, 1)),
        5: LayerPlan(0.3),
    },
}


def wrapped(lm_class, model):
    """A model as lm-eval's."""
    with quiet_lm_eval():
        return lm_class(model, tokenizer=tiny_tokenizer(), batch_size=3, add_bos_token=False)


def random_model(kind, **settings):
    """A model of a kind that transformers has, with random weights."""
    config = AutoConfig.for_model(
        kind, **settings, vocab_size=512, bos_token_id=1, eos_token_id=2, pad_token_id=0
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def random_text(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def choice_requests(rng):
    """Requests for log-likelihoods of choices.

    Five questions after the same examples, with choices of several tokens; one with choices of a
    single token; a context to be cut; and requests that begin like others.
    """
    examples = random_text(rng, 30)
    pairs = []
    for _ in range(5):
        question = f"{examples}\n\nQ: {random_text(rng, rng.randint(3, 12))}\nA:"
        for _ in range(3):
            pairs.append((question, f" {random_text(rng, rng.randint(1, 4))}"))
    letters = random_text(rng, 20)
    for letter in (" A", " B", " C"):
        pairs.append((letters, letter))
    pairs.append((random_text(rng, 200), " end"))
    pairs.extend([("", "x y"), ("a", "bc"), ("a", "bc d"), (examples, " stone")])
    return [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]


def text_requests(rng):
    """Requests for texts: with stop strings, or end tokens that may not come first; one repeats."""
    examples = random_text(rng, 30)
    with_stop_strings = {"until": ["\n", "x"], "max_gen_toks": 10, "do_sample": False}
    with_end_tokens = {
        "until": [],
        "max_gen_toks": 7,
        "do_sample": False,
        "temperature": 1.0,
        "min_new_tokens": 2,
        "eos_token_id": [2, *range(10, 200)],
    }
    pairs = []
    for _ in range(5):
        prompt = f"{examples}\n{random_text(rng, rng.randint(1, 30))}"
        pairs.append((prompt, with_stop_strings))
    for _ in range(4):
        pairs.append((random_text(rng, rng.randint(1, 60)), with_end_tokens))
    pairs.append(pairs[0])
    return [Instance("generate_until", {}, pair, number) for number, pair in enumerate(pairs)]


def assert_same_answers(model, seed):
    """PrefixLM finds HFLM's likelihoods and greedy choices, and writes the same texts."""
    stock = wrapped(HFLM, model)
    ours = wrapped(PrefixLM, model)
    assert ours._can_share()
    rng = random.Random(seed)
    choices = choice_requests(rng)
    prompts = text_requests(rng)
    expected = stock.loglikelihood(choices, disable_tqdm=True)
    answers = ours.loglikelihood(choices, disable_tqdm=True)
    for (likelihood, is_greedy), (stock_likelihood, stock_is_greedy) in zip(
        answers, expected, strict=True
    ):
        assert likelihood == pytest.approx(stock_likelihood, abs=1e-4)
        assert is_greedy == stock_is_greedy
    expected_texts = stock.generate_until(prompts, disable_tqdm=True)
    assert ours.generate_until(prompts, disable_tqdm=True) == expected_texts
    assert not ours._reasons_said, "nothing is left to HFLM"


@pytest.mark.parametrize("tokens", [32, 1024])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("family", ["tiny-llama", "tiny-qwen2", "tiny-gemma2"])
def test_answers_are_those_of_stock_lm_eval(tiny, monkeypatch, family, plan, tokens):
    monkeypatch.setattr(tree, "TOKENS_PER_PASS", tokens)
    monkeypatch.setattr(lm, "CACHED_TOKENS", 16 * tokens)
    model = tiny(family)
    if PLANS[plan]:
        model = apply_plan(model, PruningPlan(6, PLANS[plan]))
    assert_same_answers(model, family + plan)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("mistral", {"sliding_window": 9}),
        ("gemma3_text", {"sliding_window": 9, "query_pre_attn_scalar": 16}),
    ],
)
def test_sliding_windows_are_kept(monkeypatch, kind, settings):
    monkeypatch.setattr(tree, "TOKENS_PER_PASS", 64)
    assert_same_answers(random_model(kind, **SHAPE | settings), kind)


def test_fused_projections_mix_tokens(monkeypatch):
    """Phi-3 has no ``k_proj``, but attention all the same."""
    monkeypatch.setattr(tree, "TOKENS_PER_PASS", 64)
    assert_same_answers(random_model("phi3", **SHAPE), "phi3")


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
    ours = wrapped(PrefixLM, model)
    requests = choice_requests(random.Random(0))[:15]
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


def likelihood_requests(*pairs):
    return [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]


def test_an_empty_continuation_beside_one_of_a_token_has_stock_answers(tiny):
    requests = likelihood_requests(("a b c", ""), ("a b c", "d"), ("q", "r"))
    expected = wrapped(HFLM, tiny()).loglikelihood(requests, disable_tqdm=True)
    answers = wrapped(PrefixLM, tiny()).loglikelihood(requests, disable_tqdm=True)
    assert answers[0] == expected[0] == (0.0, True)
    for (likelihood, is_greedy), (stock_likelihood, stock_is_greedy) in zip(
        answers, expected, strict=True
    ):
        assert likelihood == pytest.approx(stock_likelihood, abs=1e-4)
        assert is_greedy == stock_is_greedy


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        ([("a b", "")], "the continuation '' of 'a b' has no token to score: leave the request"),
        ([("a b", ""), ("x", "y")], "the continuation '' of 'a b'"),
        ([("x", "y"), ("", "")], "the continuation '' of '' has no token"),
    ],
)
@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2"])
def test_an_empty_continuation_where_stock_fails_is_named(tiny, attention, pairs, complaint):
    model = tiny()
    requests = likelihood_requests(*pairs)
    with pytest.raises((AssertionError, IndexError)):
        wrapped(HFLM, model).loglikelihood(requests, disable_tqdm=True)
    model.config._attn_implementation = attention
    with pytest.raises(ValueError, match=complaint):
        wrapped(PrefixLM, model).loglikelihood(requests, disable_tqdm=True)


def test_attention_that_takes_no_masks_is_left_to_stock(tiny):
    model = tiny()
    ours = wrapped(PrefixLM, model)
    assert ours._can_share()
    model.config._attn_implementation = "flash_attention_2"
    assert not ours._can_share()


def test_models_of_another_build_are_left_to_stock():
    gpt2 = random_model("gpt2", n_embd=64, n_layer=2, n_head=4, n_positions=512)
    assert not wrapped(PrefixLM, gpt2)._can_share()


def test_it_needs_nothing_else_of_the_library():
    """The folder can become a package of its own."""
    folder = Path(prefix_lm.__file__).parent
    files = sorted(folder.rglob("*.py"))
    siblings = {file.stem for file in files}
    assert {"lm", "tree", "cache", "onednn"} <= siblings
    packages = set()
    for file in files:
        assert file.parent == folder
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                packages.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, "relative imports are of siblings"
                assert node.module in siblings
            elif isinstance(node, ast.ImportFrom):
                packages.add(node.module.partition(".")[0])
    external = packages - sys.stdlib_module_names
    assert external == {"torch", "transformers", "lm_eval"}


def test_onednn_is_imported_without_lm_eval():
    code = "import sys, harp_lib.prefix_lm.onednn; print('lm_eval' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
