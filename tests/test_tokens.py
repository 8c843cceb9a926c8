"""Token ids as people have them: each form gives the same perplexity, or a reason."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, XLNetConfig

from harp_lib import (
    PruningPlan,
    apply_plan,
    fit_alphas,
    load_model,
    load_pruned,
    make_plan,
    perplexity,
    save_gguf,
    save_nemotron_nas,
    save_pruned,
    search_alphas,
    word_perplexity,
)
from harp_lib.methods.layer_selection import layer_scores
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.text.perplexity import Window
from harp_lib.text.tokens import HOW_TO_CALL, context_length, make_batches

TEXTS = ["the value of x is an object", "return the name of a module", "def f(x): pass"]
TOKENIZER = tiny_tokenizer()


def ids_of(text):
    return TOKENIZER(text, return_tensors="pt").input_ids[0]


def left_padded():
    encoding = tiny_tokenizer()
    encoding.padding_side = "left"
    return encoding(TEXTS, padding=True, return_tensors="pt")


FORMS = {
    "int32": lambda: [ids_of(text).int() for text in TEXTS],
    "(1, N) tensors": lambda: [ids_of(text)[None] for text in TEXTS],
    "NumPy arrays": lambda: [ids_of(text).numpy() for text in TEXTS],
    "lists and an empty piece": lambda: [*TOKENIZER(TEXTS).input_ids, [], [7]],
    "encodings": lambda: [TOKENIZER(text) for text in TEXTS],
    "padded": lambda: TOKENIZER(TEXTS, padding=True, return_tensors="pt"),
    "padded on the left": left_padded,
    "padded lists, no mask": lambda: TOKENIZER(TEXTS, padding=True).input_ids,
    "padded on the left, no mask": lambda: left_padded().input_ids,
    "windows": lambda: [Window(ids_of(text).int(), len(ids_of(text)) - 1) for text in TEXTS],
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_the_same_texts_has_the_same_perplexity(tiny, form):
    model = tiny()
    tokens = FORMS[form]()
    nll = 0.0
    count = 0
    for text in TEXTS:
        ids = ids_of(text)[None]
        with torch.no_grad():
            nll += model(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    assert perplexity(model, tokens) == pytest.approx(np.exp(nll / count), rel=1e-5)


def test_one_sequence_in_each_form(tiny):
    model = tiny()
    ids = ids_of(TEXTS[0])
    expected = perplexity(model, ids[None])
    for form in (ids, ids.tolist(), TOKENIZER(TEXTS[0]), Window(ids, len(ids) - 1)):
        assert perplexity(model, form) == expected


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (TEXTS, "'the value of x is an object' is not whole numbers"),
        (torch.rand(2, 5), "is not whole numbers"),
        (torch.ones(2, 5, dtype=torch.bool), "is not whole numbers"),
        (torch.ones(1, 2, 5, dtype=torch.long), r"\(N,\) or \(B, N\)"),
        (None, "None is not whole numbers"),
        ({"text": TEXTS}, "has to hold input_ids, and no labels, .* got text"),
    ],
    ids=["texts", "floats", "a mask", "three dimensions", "None", "no ids"],
)
def test_what_holds_no_tokens_is_refused_with_the_call(tiny, tokens, message):
    with pytest.raises(ValueError, match=message) as refusal:
        perplexity(tiny(), tokens)
    assert HOW_TO_CALL in str(refusal.value)


def test_masks_and_labels_that_cannot_be_followed_are_refused(tiny):
    model = tiny()
    ids = ids_of(TEXTS[0])[None]
    mask = torch.ones_like(ids)
    mask[0, 2] = 0
    with pytest.raises(ValueError, match="hides tokens in the middle"):
        perplexity(model, {"input_ids": ids, "attention_mask": mask})
    with pytest.raises(ValueError, match="of the shape of input_ids"):
        perplexity(model, {"input_ids": ids, "attention_mask": mask[:, 1:]})
    with pytest.raises(ValueError, match="is not whole numbers"):
        perplexity(model, {"input_ids": ids, "attention_mask": mask.float()})
    with pytest.raises(ValueError, match="no labels, because every token is scored"):
        perplexity(model, {"input_ids": ids, "labels": ids})
    masked = {"input_ids": ids, "attention_mask": torch.zeros_like(ids)}
    with pytest.raises(ValueError, match="the corpus is empty"):
        perplexity(model, masked)


def test_ids_that_the_model_does_not_have_are_refused(tiny):
    for wrong in (-100, 512):
        with pytest.raises(ValueError, match=f"token {wrong} is none of the 512 of Llama"):
            perplexity(tiny(), [torch.tensor([5, 6, wrong])])
    with pytest.raises(ValueError, match="a window of 3 tokens cannot score 3"):
        perplexity(tiny(), [Window(torch.tensor([5, 6, 7]), 3)])


def test_a_pad_token_that_ends_texts_is_no_padding(tiny):
    model = tiny()
    model.config.pad_token_id = model.config.eos_token_id = 2
    ends_once = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 2]])
    with torch.no_grad():
        expected = model(ends_once, labels=ends_once).loss.exp().item()
    assert perplexity(model, ends_once) == pytest.approx(expected, rel=1e-5)
    padded = torch.tensor([[5, 6, 7, 8], [9, 10, 2, 2]])
    with pytest.raises(ValueError, match="a sequence has 2 tokens 2 at one end, padding or text"):
        perplexity(model, padded)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    separate = [padded[0], padded[1, :3]]
    encoding = {"input_ids": padded, "attention_mask": mask}
    assert perplexity(model, encoding) == perplexity(model, separate)


def test_a_text_of_consecutive_ids_that_begins_with_the_pad_token_is_read_whole(tiny):
    model = tiny()
    ids = torch.arange(40)[None]
    with torch.no_grad():
        expected = model(ids, labels=ids).loss.exp().item()
    assert perplexity(model, ids) == pytest.approx(expected, rel=1e-5)


def test_a_text_longer_than_the_context_is_refused_everywhere(tiny):
    model = tiny()
    model.config.max_position_embeddings = 64
    fits = torch.randint(5, 500, (1, 64), generator=torch.Generator().manual_seed(0))
    assert np.isfinite(perplexity(model, fits))
    too_long = torch.cat([fits, fits[:, :1]], dim=1)
    uses = (
        perplexity,
        lambda model, tokens: search_alphas(model, tokens, 1, progress=False),
        lambda model, tokens: fit_alphas(model, tokens, 1),
        lambda model, tokens: make_plan("flap", model, tokens, kv_groups=2),
        lambda model, tokens: make_plan("llm-pruner", model, tokens, kv_groups=12),
        lambda model, tokens: layer_scores("similarity", model, tokens),
    )
    for use in uses:
        with pytest.raises(
            ValueError, match="a text of 65 tokens is longer than the context of 64"
        ):
            use(model, too_long)
        with pytest.raises(ValueError, match="is not whole numbers"):
            use(model, TEXTS)
        use(model, FORMS["padded"]())
    # The last token of a window is only predicted.
    assert np.isfinite(perplexity(model, [Window(too_long[0], 64)]))


def test_a_full_window_of_a_model_with_learned_positions():
    from test_forward import tiny_family

    model = tiny_family("gpt2")
    assert context_length(model.config) == 64
    ids = torch.randint(5, 500, (65,), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(ids[None, :-1]).logits[0]
    nll = torch.nn.functional.cross_entropy(logits[-9:], ids[-9:]).item()
    assert perplexity(model, [Window(ids, 9)]) == pytest.approx(np.exp(nll), rel=1e-4)
    assert np.isfinite(word_perplexity(model, TOKENIZER, " ".join(TEXTS * 9)))


def test_context_of_scaled_positions(tiny):
    config = tiny().config
    assert context_length(config) == 512
    rope = {"rope_theta": 1e4, "factor": 4.0}
    config.rope_parameters = rope | {"rope_type": "dynamic"}
    assert context_length(config) == 2048
    config.rope_parameters |= {"rope_type": "yarn", "original_max_position_embeddings": 128}
    assert context_length(config) == 512
    config.rope_parameters |= {"rope_type": "llama3"}
    assert context_length(config) == 512


def test_a_family_without_a_context_reads_any_text():
    shape = {"vocab_size": 512, "hidden_size": 32, "n_layer": 1, "n_head": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("bloom", **shape)).eval()
    assert context_length(model.config) is None
    assert np.isfinite(perplexity(model, torch.randint(5, 500, (1, 3000))))
    assert np.isfinite(word_perplexity(model, TOKENIZER, TEXTS))
    with pytest.raises(ValueError, match="texts are cut by a tokenizer"):
        word_perplexity(model, None, TEXTS)
    assert context_length(XLNetConfig()) is None


def test_batches_hold_neighbours_of_one_length(tiny):
    batches = make_batches(tiny(), [torch.arange(5, 9), torch.arange(6, 10), torch.arange(5, 12)])
    assert [batch.ids.shape for batch in batches] == [(2, 4), (1, 7)]
    assert batches[0].ids.dtype == torch.int64


def test_names_of_dtypes(tiny, tmp_path):
    tiny().bfloat16().save_pretrained(tmp_path)
    names = ("auto", "bf16", "bfloat16", "torch.bfloat16", torch.bfloat16)
    for source in (tmp_path, "tiny-llama"):
        for name in names if source == tmp_path else names[1:]:
            assert load_model(source, dtype=name)[0].dtype == torch.bfloat16
        for name in ("fp16", "half", "float16"):
            assert load_model(source, dtype=name)[0].dtype == torch.float16
        assert load_model(source)[0].dtype == torch.float32
        for wrong in ("int8", "f32", "", torch.int8, 16):
            with pytest.raises(ValueError, match="is no dtype of a model: choose from auto"):
                load_model(source, dtype=wrong)
    assert load_model("tiny-llama", dtype="auto")[0].dtype == torch.float32


def test_folders_without_a_tokenizer(tiny, tmp_path):
    tiny().save_pretrained(tmp_path / "dense")
    model, tokenizer = load_model(tmp_path / "dense")
    assert tokenizer is None
    apply_plan(model, PruningPlan.value_only(6, [0.5]))
    save_pruned(model, tokenizer, tmp_path / "pruned")
    again, tokenizer = load_pruned(tmp_path / "pruned", dtype="bf16")
    assert tokenizer is None
    assert again.dtype == torch.bfloat16
    save_nemotron_nas(model, None, tmp_path / "nas")
    with pytest.raises(ValueError, match="a GGUF file holds the tokenizer too"):
        save_gguf(model, None, tmp_path / "model.gguf")
    TOKENIZER.save_pretrained(tmp_path / "dense")
    assert load_model(tmp_path / "dense")[1]("def f").input_ids == TOKENIZER("def f").input_ids
