"""The fast evaluation gives the answers of stock HFLM: for whole and pruned models, choices and
written answers.
"""

import random

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoConfig, AutoModelForCausalLM

from harp_lib import PruningPlan, apply_plan
from harp_lib.evaluation import prefix_lm as fast
from harp_lib.evaluation.prefix_lm import PrefixLM
from harp_lib.evaluation.runner import quiet_lm_eval
from harp_lib.models.registry import SHAPE, tiny_tokenizer
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


def both(model):
    with quiet_lm_eval():
        return [
            cls(model, tokenizer=tiny_tokenizer(), batch_size=3, add_bos_token=False)
            for cls in (HFLM, PrefixLM)
        ]


def text(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def choices(rng):
    """Questions after the same examples, choices of some tokens and of one, a cut context, and a
    start of another.
    """
    shots, asked = text(rng, 30), []
    for _ in range(5):
        question = f"{shots}\n\nQ: {text(rng, rng.randint(3, 12))}\nA:"
        asked += [(question, f" {text(rng, rng.randint(1, 4))}") for _ in range(3)]
    letters = text(rng, 20)
    asked += [(letters, letter) for letter in (" A", " B", " C")]
    asked += [(text(rng, 200), " end"), ("", "x y"), ("a", "bc"), ("a", "bc d"), (shots, " stone")]
    return [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(asked)]


def prompts(rng):
    """Stop strings; end tokens that may not come first, and prompts of which one is there twice."""
    shots = text(rng, 30)
    first = {"until": ["\n", "x"], "max_gen_toks": 10, "do_sample": False}
    second = {
        "until": [],
        "max_gen_toks": 7,
        "do_sample": False,
        "temperature": 1.0,
        "min_new_tokens": 2,
    }
    second |= {"eos_token_id": [2, *range(10, 200)]}
    asked = [(f"{shots}\n{text(rng, rng.randint(1, 30))}", first) for _ in range(5)]
    asked += [(text(rng, rng.randint(1, 60)), second) for _ in range(4)]
    return [
        Instance("generate_until", {}, pair, number)
        for number, pair in enumerate([*asked, asked[0]])
    ]


def answers(lm, rng):
    """Likelihoods of all choices, whether each is what greedy decoding gives, and what is written
    after all prompts.
    """
    likelihoods, greedy = zip(*lm.loglikelihood(choices(rng), disable_tqdm=True), strict=True)
    return likelihoods, greedy, lm.generate_until(prompts(rng), disable_tqdm=True)


@pytest.mark.parametrize("tokens", [32, 1024])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("family", ["tiny-llama", "tiny-qwen2", "tiny-gemma2"])
def test_answers_are_those_of_stock_lm_eval(tiny, monkeypatch, family, plan, tokens):
    monkeypatch.setattr(fast, "TOKENS_PER_PASS", tokens)
    monkeypatch.setattr(fast, "TOKENS_AT_ONCE", 16 * tokens)
    model = tiny(family)
    model = apply_plan(model, PruningPlan(6, PLANS[plan])) if PLANS[plan] else model
    stock, ours = (answers(lm, random.Random(family + plan)) for lm in both(model))
    assert ours[0] == pytest.approx(stock[0], abs=1e-4)
    assert ours[1:] == stock[1:]


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("mistral", {"sliding_window": 9}),
        ("gemma3_text", {"sliding_window": 9, "query_pre_attn_scalar": 16}),
    ],
)
def test_windows(monkeypatch, kind, more):
    monkeypatch.setattr(fast, "TOKENS_PER_PASS", 64)
    config = AutoConfig.for_model(
        kind, **SHAPE | more, vocab_size=512, bos_token_id=1, eos_token_id=2, pad_token_id=0
    )
    torch.manual_seed(0)
    stock, ours = (
        answers(lm, random.Random(kind))
        for lm in both(AutoModelForCausalLM.from_config(config).eval())
    )
    assert ours[0] == pytest.approx(stock[0], abs=1e-4)
    assert ours[1:] == stock[1:]


def test_each_token_is_read_once_and_logits_are_few(tiny):
    model, rng, read, logits = tiny(), random.Random(0), [], []
    asked = choices(rng)[:15]
    model.model.embed_tokens.register_forward_hook(
        lambda module, args, output: read.append(output.shape[1])
    )
    model.lm_head.register_forward_hook(lambda module, args, output: logits.append(output.shape[1]))
    _, ours = both(model)
    ours.loglikelihood(asked, disable_tqdm=True)
    encoded = [ours._encode_pair(*request.args) for request in asked]
    beginnings = {tuple([*a, *b][:end]) for a, b in encoded for end in range(1, len(a) + len(b))}
    assert sum(read) == len(beginnings), (
        "each different beginning of a request is one token to read"
    )
    assert sum(logits) <= sum(len(continuation) for _, continuation in encoded)


def test_what_is_not_understood_is_left_to_stock(tiny):
    model = tiny()
    _, ours = both(model)
    assert ours._can_share()
    assert all(ours._is_greedy(request.args[1]) for request in prompts(random.Random(0)))
    assert not ours._is_greedy({"do_sample": True})
    model.generation_config.repetition_penalty = 1.1
    assert not ours._is_greedy({"do_sample": False})
    model.config._attn_implementation = "flash_attention_2"
    assert not ours._can_share()
