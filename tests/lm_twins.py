"""lm-eval's HFLM and our PrefixLM of the same model, which have to give the same answers."""

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoConfig, AutoModelForCausalLM

from harp_lib.evaluation.runner import quiet_lm_eval
from harp_lib.models.registry import SHAPE, tiny_tokenizer
from harp_lib.prefix_lm import PrefixLM

PROMPT = "def f(x): return the value of the object in a statement that follows it"
PAIRS = [(PROMPT, " and a name"), (PROMPT, " not"), (PROMPT[:40], " not"), ("", "a value")]
WORDS = ("river", "stone", "lantern", "orchard", "copper", "meadow", "harbour", "window", "saddle")
GREEDY = {"until": [], "max_gen_toks": 6, "do_sample": False}


def random_model(kind, **settings):
    """A random model whose logits are far apart, so that each difference shows."""
    particulars = {"vocab_size": 512, "num_hidden_layers": 3, "initializer_range": 0.2}
    config = AutoConfig.for_model(kind, **SHAPE | particulars | settings)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def with_tokenizer(model, **settings):
    """HFLM and PrefixLM of the same model, with the same arguments."""
    settings = {"tokenizer": tiny_tokenizer(), "add_bos_token": False} | settings
    with quiet_lm_eval():
        return tuple(lm_class(model, **settings) for lm_class in (HFLM, PrefixLM))


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


def assert_same_outcome(stock, ours, kind, *args):
    """Texts and refusals are equal; log-likelihoods are, to rounding."""
    requests = requests_of(kind, *args)
    expected = outcome(getattr(stock, kind), requests)
    answers = outcome(getattr(ours, kind), requests)
    if not isinstance(expected, list) or isinstance(expected[0], str):
        assert answers == expected
        return
    for answer, stock_answer in zip(answers, expected, strict=True):
        assert answer == pytest.approx(stock_answer, abs=1e-4)


def assert_equal(stock, ours, pairs=PAIRS, settings=GREEDY):
    """Both score and write the same."""
    different_texts = dict.fromkeys(text for text, _ in pairs if text)
    prompts = [(text, settings) for text in different_texts]
    assert_same_outcome(stock, ours, "loglikelihood_rolling", (PROMPT,), (PROMPT[:20],))
    assert_same_outcome(stock, ours, "loglikelihood", *pairs)
    assert_same_outcome(stock, ours, "generate_until", *prompts)
