"""A model is compared with itself once for each way in which it is built, whoever reads with it."""

import copy
import gc
import weakref
from contextlib import contextmanager

import pytest
import torch
from lm_twins import requests_of, with_tokenizer

from harp_lib import PruningPlan, apply_plan
from harp_lib.prefix_lm import trial
from harp_lib.pruning.plan import LayerPlan
from harp_lib.pruning.surgery import temporarily_pruned

PROMPT = "def f(x): return the value of the object"


@pytest.fixture
def trials(monkeypatch):
    """The models, texts and kinds of the trials: an empty list that grows."""
    failed_trial = trial.failed_trial
    made = []

    def counting(model, device, tokens, is_writing):
        made.append((weakref.ref(model), len(tokens), is_writing))
        return failed_trial(model, device, tokens, is_writing)

    monkeypatch.setattr(trial, "failed_trial", counting)
    return made


def new_lm(model):
    _, lm = with_tokenizer(model)
    return lm


def score(model, prompt=PROMPT):
    """Two choices, scored by an lm-eval model of their own."""
    requests = requests_of("loglikelihood", (prompt, " a"), (prompt, " b"))
    return new_lm(model).loglikelihood(requests, disable_tqdm=True)


def write(model, prompt=PROMPT):
    settings = {"until": [], "max_gen_toks": 3, "do_sample": False}
    requests = requests_of("generate_until", (prompt, settings))
    return new_lm(model).generate_until(requests, disable_tqdm=True)


def test_it_is_tried_once_for_plans_of_one_kind_and_many_benchmarks(tiny, trials):
    model = tiny()
    plans = [
        PruningPlan(6, {}),
        PruningPlan.value_only(6, {5: 0.8}),
        PruningPlan.value_only(6, {4: 0.7, 5: 0.9}),
        PruningPlan(6, {1: LayerPlan(removed_groups=(0,)), 3: LayerPlan(removed_groups=(1,))}),
    ]
    answers = []
    for _ in range(2):  # benchmarks
        for plan in plans:
            with temporarily_pruned(model, plan):
                answers.append((score(model), write(model)))
    assert len(trials) == 2 * 2  # with attention in all layers, and without it on top
    assert answers[:4] == answers[4:]
    assert answers[1] != answers[2]


def test_a_longer_text_is_tried_and_a_shorter_one_is_not(tiny, trials):
    model = tiny()
    for prompt in (PROMPT[:20], PROMPT, PROMPT[:30], PROMPT):
        score(model, prompt)
        write(model, prompt)
    lengths = {False: [], True: []}
    for _, length, is_writing in trials:
        lengths[is_writing].append(length)
    assert [len(texts) for texts in lengths.values()] == [2, 2]
    for first, second in lengths.values():
        assert first < second


def with_other_attention(model):
    model.set_attn_implementation("eager")


def with_another_window(model):
    model.config.sliding_window = 5


def with_other_rotations(model):
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    model.config.rope_parameters = rope


def with_a_hook(model):
    model.model.layers[3].register_forward_hook(lambda module, inputs, output: output)


def with_another_forward(model):
    layer = model.model.layers[3]
    forward = layer.forward
    layer.forward = lambda *args, **kwargs: forward(*args, **kwargs)


def pruned_in_place(model):
    apply_plan(model, PruningPlan.value_only(6, {5: 0.8}))


CHANGES = [
    with_other_attention,
    with_another_window,
    with_other_rotations,
    with_a_hook,
    with_another_forward,
    pruned_in_place,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_of_another_build_is_tried_anew(tiny, trials, change):
    model = tiny("tiny-mistral")
    score(model)
    score(model)
    assert len(trials) == 1
    change(model)
    score(model)
    score(model)
    assert len(trials) == 2


@contextmanager
def shifted(model):
    """A layer looks at the neighbours of a token."""
    hook = model.model.layers[2].register_forward_hook(
        lambda module, inputs, output: output + output.roll(1, dims=1)
    )
    with hook:
        yield


def test_a_failure_is_kept_for_the_build_that_failed(tiny, trials, caplog):
    model = tiny()
    answers = score(model)
    lm = new_lm(model)
    with shifted(model):
        score(model)
        score(model)
        assert not lm._can_share()
        assert not new_lm(model)._can_share()
    assert len(trials) == 2
    assert lm._can_share()
    assert score(model) == answers
    assert caplog.text.count("a tree of texts has other logits") == 4  # each lm-eval model says it


def test_too_little_memory_is_no_verdict(tiny, monkeypatch):
    def out_of_memory(*args):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(trial, "last_logits", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            score(tiny())
    score(tiny())


def test_another_model_is_tried_and_none_is_kept_alive(tiny, trials):
    model = tiny()
    twin = copy.deepcopy(model)
    with_another_forward(model)  # a function that refers to the model
    twin.generate = twin.generate  # a method of its own
    score(model)
    score(twin)
    (model_reference, *_), (twin_reference, *_) = trials
    assert model_reference() is model
    assert twin_reference() is twin
    del model, twin
    gc.collect()
    assert model_reference() is None
    assert twin_reference() is None
