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
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.text.corpora import calibration_blocks, excerpt, load_corpus
from harp_lib.text.perplexity import rolling_windows

pytestmark = pytest.mark.real_model


@pytest.fixture(params=["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b"])
def real(request, smollm2):
    """A model and its tokenizer; the larger two where somebody has downloaded them."""
    if request.param == "smollm2-135m":
        return smollm2
    if not (config.MODELS / request.param).is_dir():
        pytest.skip(
            f"{request.param} is not downloaded: harp_lib.load_model({request.param!r}) does"
        )
    return load_model(request.param)


def test_search_prune_save_load_and_write(real, tmp_path):
    model, tokenizer = real
    corpus = excerpt(load_corpus("python-docs", "test"), tokenizer, documents=2, tokens=96)
    windows = rolling_windows(tokenizer, corpus.texts, 96)
    top = model.config.num_hidden_layers - 1
    dense = perplexity(model, windows)
    assert dense < 60, "a trained model"
    fast = search_alphas(model, windows, 3, grid=(0.0, 0.5, 1.0), progress=False)
    literal = search_alphas(
        model, windows, 3, grid=(0.0, 0.5, 1.0), reuse_prefix=False, progress=False
    )
    assert fast.alphas == literal.alphas
    for layer in range(top - 2, top + 1):
        assert fast.perplexities[layer] == pytest.approx(literal.perplexities[layer], rel=1e-5)

    calibration = calibration_blocks(load_corpus("python-docs", "train"), tokenizer, 8, 64)
    budget = {"kv_groups": 3 * model.config.num_key_value_heads}
    for method in METHODS:
        options = dict(budget)
        if "harp" in method:
            options["alphas"] = fast.alphas
        else:
            options["layers"] = range(top - 2, top + 1)
        plan = make_plan(method, model, calibration, **options)
        with temporarily_pruned(model, plan):
            assert dense / 2 < perplexity(model, windows) < 1000, method
    refit = refit_values(model, calibration, 3)
    with temporarily_pruned(model, refit.plan, weights=refit.weights):
        assert perplexity(model, windows) < 2 * dense
    assert perplexity(model, windows) == dense

    parameters = model.num_parameters()
    apply_plan(model, fast.plan)
    assert model.num_parameters() < parameters
    pruned = perplexity(model, windows)
    assert pruned == pytest.approx(min(fast.perplexities[top - 2].values()), rel=1e-5)
    assert dense / 2 < pruned < 2 * dense, "three layers, rescaled"

    save_pruned(model, tokenizer, tmp_path / "pruned")
    again, tokenizer = load_pruned(tmp_path / "pruned")
    ids = tokenizer("Water boils at a temperature of", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": tokenizer.pad_token_id}
    cached = again.generate(ids, use_cache=True, **options)
    uncached = again.generate(ids, use_cache=False, **options)
    assert torch.equal(cached, uncached)


def test_word_perplexity_of_real_pages(smollm2, shared):
    pages = load_corpus("wikitext", "test", str(shared / "benchmarks")).documents
    short = sorted(pages, key=len)[:2]
    assert 10 < word_perplexity(*smollm2, short) < 200
