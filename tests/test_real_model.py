"""One pass over real language models of three families, from the package index."""

import pytest
import torch

from harp_lib import (
    METHODS,
    apply_plan,
    config,
    load_model,
    load_pruned,
    make_plan,
    perplexity,
    refit_values,
    save_pruned,
    search_alphas,
    word_perplexity,
)
from harp_lib.models.tokenizer import first_token_id
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.text.corpora import calibration_blocks, excerpt, load_corpus
from harp_lib.text.perplexity import rolling_windows
from harp_lib.text.tokens import Window

pytestmark = pytest.mark.real_model


FAMILIES = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b"]


@pytest.fixture
def real(request, smollm2):
    """A model and its tokenizer; the larger ones where somebody has downloaded them."""
    if request.param == "smollm2-135m":
        return smollm2
    if not (config.MODELS / request.param).is_dir():
        pytest.skip(
            f"{request.param} is not downloaded: harp_lib.load_model({request.param!r}) does"
        )
    return load_model(request.param)


def search(model, windows):
    """Alphas of three layers from three values, checked against the literal search."""
    grid = (0.0, 0.5, 1.0)
    fast = search_alphas(model, windows, 3, grid=grid, progress=False)
    literal = search_alphas(model, windows, 3, grid=grid, reuse_prefix=False, progress=False)
    assert fast.alphas == literal.alphas
    for layer in top_three(model):
        assert fast.perplexities[layer] == pytest.approx(literal.perplexities[layer], rel=1e-5)
    return fast


def top_three(model):
    num_layers = model.config.num_hidden_layers
    return range(num_layers - 3, num_layers)


def check_methods_and_refit(model, tokenizer, windows, alphas):
    """Every method costs some perplexity, a refit little, and the model stays as it was."""
    dense = perplexity(model, windows)
    calibration = calibration_blocks(load_corpus("python-docs", "train"), tokenizer, 8, 64)
    kv_groups = 3 * model.config.num_key_value_heads
    for method in METHODS:
        options = {"layers": top_three(model)}
        if "harp" in method:
            options = {"alphas": alphas}
        plan = make_plan(method, model, calibration[:4], kv_groups=kv_groups, **options)
        with temporarily_pruned(model, plan):
            assert dense / 2 < perplexity(model, windows) < 1000, method
    refit = refit_values(model, calibration, 3)
    with temporarily_pruned(model, refit.plan, weights=refit.weights):
        assert perplexity(model, windows) < 2 * dense
    assert perplexity(model, windows) == dense


def check_checkpoint(model, tokenizer, folder):
    """A saved and loaded model gives the same logits, and the same text without cache.

    Texts begin with the same token as before, and generation ends at the same ones.
    """
    save_pruned(model, tokenizer, folder)
    loaded, loaded_tokenizer = load_pruned(folder)
    assert first_token_id(loaded_tokenizer) == first_token_id(tokenizer)
    assert loaded.generation_config.eos_token_id == model.generation_config.eos_token_id
    ids = loaded_tokenizer("Water boils at a temperature of", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    options = {"max_new_tokens": 12, "do_sample": False}
    options["pad_token_id"] = loaded_tokenizer.pad_token_id
    cached = loaded.generate(ids, use_cache=True, **options)
    uncached = loaded.generate(ids, use_cache=False, **options)
    assert torch.equal(cached, uncached)


@pytest.mark.parametrize("real", FAMILIES, indirect=True)
def test_search_prune_save_load_and_write(real, tmp_path):
    model, tokenizer = real
    corpus = excerpt(load_corpus("python-docs", "test"), tokenizer, documents=2, tokens=96)
    windows = rolling_windows(tokenizer, corpus.texts, 96)
    dense = perplexity(model, windows)
    assert dense < 60, "a trained model"
    fast = search(model, windows)
    check_methods_and_refit(model, tokenizer, windows, fast.alphas)

    lowest = top_three(model)[0]
    num_parameters = model.num_parameters()
    apply_plan(model, fast.plan)
    assert model.num_parameters() < num_parameters
    pruned = perplexity(model, windows)
    assert pruned == pytest.approx(min(fast.perplexities[lowest].values()), rel=1e-5)
    assert dense / 2 < pruned < 2 * dense, "three layers, rescaled"
    check_checkpoint(model, tokenizer, tmp_path / "pruned")


def test_word_perplexity_of_real_pages(smollm2, shared):
    pages = load_corpus("wikitext", "test", str(shared / "benchmarks")).documents
    short = sorted(pages, key=len)[:2]
    assert 10 < word_perplexity(*smollm2, short) < 200


@pytest.mark.parametrize("real", [*FAMILIES, "qwen2.5-coder-1.5b"], indirect=True)
def test_the_token_before_a_text_disturbs_no_named_model(real):
    """The dense model predicts as well after it as after the best of nothing, BOS and EOS."""
    model, tokenizer = real
    texts = excerpt(load_corpus("python-docs", "validation"), tokenizer, 4, 128).texts
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]

    def perplexity_after(*before):
        windows = [Window(torch.tensor([*before, *text]), len(text) - 1) for text in ids]
        return perplexity(model, windows)

    candidates = [perplexity_after()]
    for token in {tokenizer.bos_token_id, tokenizer.eos_token_id} - {None}:
        candidates.append(perplexity_after(token))
    chosen = perplexity_after(first_token_id(tokenizer))
    assert chosen < 1.1 * min(candidates)
