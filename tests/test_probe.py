"""Looking into a model: what is seen is what the model computes, and looking changes nothing."""

import math

import pytest
import torch
from conftest import FAMILIES

from harp_lib import theory
from harp_lib.experiments import norm_study, similarity_study
from harp_lib.experiments.similarity_study import (
    bound_blocks,
    observe,
    random_twin,
    repeat_tokens,
    study_similarity,
    value_output_maps,
)
from harp_lib.experiments.theory_study import Texts
from harp_lib.measure.corpora import Corpus
from harp_lib.measure.probe import observe_layers
from harp_lib.pruning.architecture import decoder_layers, output_norm
from harp_lib.pruning.surgery import temporarily_value_only
from harp_lib.results import ResultStore


def views(model, ids):
    seen = []
    observe_layers(model, ids, seen.append)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
class TestViews:
    def test_streams_are_transformers_own(self, tiny, tokens, family):
        model = tiny(family)
        seen = views(model, tokens)
        with torch.no_grad():
            hidden = model(tokens, output_hidden_states=True, use_cache=False).hidden_states
        assert [view.layer for view in seen] == list(range(6))
        for view, entering, leaving in zip(seen, hidden[:-1], [*hidden[1:-1], None], strict=True):
            assert torch.allclose(view.entering, entering, atol=1e-4)
            assert leaving is None or torch.allclose(view.leaving, leaving, atol=1e-4)
        with torch.no_grad():
            normed = model.get_decoder().norm(seen[-1].leaving)
        assert torch.allclose(normed, hidden[-1], atol=1e-4), "transformers' last hidden state is after the norm"

    def test_branch_is_attention_times_values(self, tiny, tokens, family):
        model = tiny(family)
        for view in views(model, tokens):
            layer = decoder_layers(model)[view.layer]
            mixed = (view.attention @ view.value_states).transpose(1, 2).flatten(2)  # (B, N, H·Dh)
            branch = layer.self_attn.o_proj(mixed)
            branch = output_norm(layer)(branch) if output_norm(layer) else branch
            assert torch.allclose(branch, view.branch, atol=1e-4)
            assert theory.attention_entropies(view.attention, view.visible).shape == (4, 4)

    def test_value_only_branch_is_what_pruning_leaves(self, tiny, tokens, family):
        model = tiny(family)
        view = views(model, tokens)[5]
        with temporarily_value_only(model, {5: 1.0}):
            hidden = []
            handle = decoder_layers(model)[5].register_forward_hook(lambda m, a, out: hidden.append((a[0], out)))
            with torch.no_grad():
                model(tokens, use_cache=False)
            handle.remove()
        layer, entering = decoder_layers(model)[5], hidden[0][0]
        middle = entering + view.value_only_branch
        with torch.no_grad():
            if output_norm(layer):
                ffn = layer.post_feedforward_layernorm(layer.mlp(layer.pre_feedforward_layernorm(middle)))
            else:
                ffn = layer.mlp(layer.post_attention_layernorm(middle))
        output = hidden[0][1][0] if isinstance(hidden[0][1], tuple) else hidden[0][1]
        assert torch.allclose(middle + ffn, output, atol=1e-4)

    def test_looking_changes_nothing(self, tiny, tokens, family):
        model = tiny(family).train()
        implementation = model.config._attn_implementation
        before = {name: value.clone() for name, value in model.state_dict().items()}
        views(model, tokens)
        with pytest.raises(RuntimeError, match="stop"):
            observe_layers(model, tokens, lambda view: (_ for _ in ()).throw(RuntimeError("stop")))
        assert model.training
        assert model.config._attn_implementation == implementation
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_windows_are_seen(tiny, tokens):
    seen = views(tiny("tiny-gemma2"), tokens)
    assert seen[0].visible.max() == 32
    assert seen[1].visible.max() == 48
    assert (seen[0].attention > 0).sum(-1).max() == 32


def test_a_pruned_model_is_refused(tiny, tokens):
    from harp_lib import PruningPlan, apply_plan

    model = apply_plan(tiny(), PruningPlan.value_only(6, [0.5]))
    with pytest.raises(ValueError, match="pruned already"):
        observe_layers(model, tokens, print)


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gemma2"])
def test_singular_values_of_value_and_output(tiny, family):
    layer = decoder_layers(tiny(family))[0]
    maps, attention = value_output_maps(layer), layer.self_attn
    assert len(maps) == 4
    for head, small in enumerate(maps):
        group = slice(head // 2 * 16, head // 2 * 16 + 16)
        whole = attention.o_proj.weight[:, head * 16 : head * 16 + 16] @ attention.v_proj.weight[group]  # (d, d)
        expected = torch.linalg.svdvals(whole.double())[:16]
        assert torch.allclose(torch.linalg.svdvals(small), expected, atol=1e-6)


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-qwen2", "tiny-gemma2"])
def test_a_repeated_token_keeps_all_rows_equal(tiny, tokens, family):
    """Theorem 1's limit in a model with rotary positions: not uniform, and superfluous all the same."""
    found = repeat_tokens(tiny(family), tokens[:1], tokens=2)
    assert min(min(layers) for layers in found["similarity"]) > 1 - 1e-6
    assert max(max(layers) for layers in found["relative distance"]) < 1e-5
    assert min(min(heads) for layers in found["entropy"] for heads in layers) < 0.98
    assert max(found["logit difference"]) < 1e-3


def test_random_twin(tiny):
    model = tiny()
    state = torch.random.get_rng_state()
    twin, again, other = random_twin(model, 7), random_twin(model, 7), random_twin(model, 8)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert {k: v.shape for k, v in twin.state_dict().items()} == {k: v.shape for k, v in model.state_dict().items()}
    weights = [x.model.layers[0].mlp.up_proj.weight for x in (twin, again, other, model)]
    assert torch.equal(weights[0], weights[1])
    assert not any(torch.equal(weights[0], weight) for weight in weights[2:])
    assert weights[0].std().item() == pytest.approx(model.config.initializer_range, rel=0.1)


def test_a_norm_after_attention_fixes_the_branch_whatever_attention_does(tiny, tokens):
    """Gemma-2 with gains of 1: every row of the branch has length √d, with aggregation and without."""
    model = tiny("tiny-gemma2")
    for layer in decoder_layers(model):
        torch.nn.init.zeros_(layer.post_attention_layernorm.weight)
    for view in views(model, tokens):
        for branch in (view.branch, view.value_only_branch):
            assert torch.allclose(branch.norm(dim=-1), torch.tensor(8.0), rtol=1e-3)


def test_a_window_that_only_the_config_knows(tokens):
    """Mistral keeps its window in the config, not in the attention module."""
    from transformers import MistralConfig, MistralForCausalLM

    from harp_lib.measure.tiny import SHAPE

    model = MistralForCausalLM(MistralConfig(**SHAPE, vocab_size=512, sliding_window=4)).eval()
    seen = views(model, tokens)
    assert seen[0].visible.max() == 4
    assert (seen[0].attention > 0).sum(-1).max() == 4


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gemma2"])
def test_observations_of_similarity(tiny, tokens, family):
    """Every quantity again, in the plainest way, from what transformers itself returns."""
    model = tiny(family)
    found = observe(model, [tokens[:1], tokens[1:2]])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(tokens[1:2], output_hidden_states=True, output_attentions=True, use_cache=False)
    streams = [h[0].double() for h in out.hidden_states[:-1]]
    for layer in range(5):  # what leaves the last layer is not among them
        H, after, A = streams[layer], streams[layer + 1], out.attentions[layer][0].double()
        expected = {
            "similarity": theory.similarity(H),
            "similarity without first": theory.similarity(H[1:]),
            "distance": (H - H.mean(0)).norm().item(),
            "distance without first": (H[1:] - H[1:].mean(0)).norm().item(),
            "norm": H.norm().item(),
            "norm without first": H[1:].norm().item(),
            "block influence": 1 - torch.cosine_similarity(H, after, dim=-1).mean().item(),
        }
        module = decoder_layers(model)[layer]
        with torch.no_grad():
            normed = module.input_layernorm(streams[layer].float()[None])
            V = module.self_attn.v_proj(normed)[0].double().view(48, 2, 16).transpose(0, 1)  # (K, N, Dh)
        V = V.repeat_interleave(2, dim=0)
        expected["projected similarity"] = theory.similarity(normed)
        expected["value gap"] = ((A @ V - V).norm() / V.norm()).item()
        expected["value distance"] = ((V - V.mean(1, keepdim=True)).norm() / V.norm()).item()
        for quantity, value in expected.items():
            assert found[quantity][1][layer] == pytest.approx(value, rel=1e-4, abs=1e-5), quantity
        each = [theory.distance_to_consensus(A[h] @ V[h]) / theory.distance_to_consensus(V[h]) for h in range(4)]
        assert found["value contraction"][1][layer] == pytest.approx(each, rel=1e-4)
        for head, entropy in enumerate(found["entropy"][1][layer]):
            window = 32 if family == "tiny-gemma2" and layer % 2 == 0 else 48
            rows = [A[head, i] for i in range(1, 48)]
            plain = [torch.special.entr(r).sum().item() / math.log(min(i + 2, window)) for i, r in enumerate(rows)]
            assert entropy == pytest.approx(sum(plain) / 47, rel=1e-4)
    assert len(found["similarity"][0]) == len(found["distance"][0]) == 7


def test_lemma_2_of_a_layer(tiny, tokens):
    model = tiny()
    found = bound_blocks(model, tokens[:1])
    view, layer = views(model, tokens[:1])[2], decoder_layers(model)[2]
    attention, middle = layer.self_attn, view.entering + view.branch
    maps = [
        attention.o_proj.weight[:, 16 * h : 16 * h + 16] @ attention.v_proj.weight[16 * (h // 2) : 16 * (h // 2) + 16]
        for h in range(4)
    ]
    weights = [*maps, layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight, layer.mlp.down_proj.weight]
    s = max(torch.linalg.svdvals(weight.double())[0].item() for weight in weights)
    largest = max(theory.largest_eigenvalue(head).item() for head in view.attention[0])
    betas = [H.square().mean(-1).min().item() ** 0.5 for H in (view.entering, middle)]
    assert found["s"][2] == pytest.approx(s, rel=1e-5)
    expected = (1 + s**2) * (1 + largest**0.5 * 4 * s) / (betas[0] * betas[1])
    assert found["v"][2] == pytest.approx(expected, rel=1e-4)


def test_one_twin_serves_all_texts(tiny, tokens, tmp_path, monkeypatch):
    built = []
    monkeypatch.setattr(
        similarity_study, "random_twin", lambda model, seed: built.append(seed) or random_twin(model, seed)
    )
    corpora = {
        name: Texts(Corpus(name, "test", "embedded", (name,)), [tokens[:1]]) for name in ("python-docs", "scipy-docs")
    }
    store = ResultStore("smoke", "similarity", root=tmp_path)
    study_similarity("tiny-llama", tiny(), corpora, {"eigen_documents": 1}, 3, store)
    assert built == [3]
    assert store.counts["computed"] == 8


def test_an_interrupted_study_leaves_no_finished_run(tiny, tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(norm_study, "AlphaStudy", None)  # the search is where it stops
    texts = {"python-docs": Texts(Corpus("python-docs", "test", "embedded", ("x",)), [tokens[:1]])}
    store = ResultStore("smoke", "norm_change", root=tmp_path)
    with pytest.raises(TypeError):
        norm_study.study_norms("tiny-llama", tiny(), None, texts, {"name": "smoke"}, store)
    assert store.counts["computed"] == 1
    assert not list(tmp_path.rglob("run.json"))


def test_products_are_pooled_over_texts(tiny, tokens):
    found = norm_study.observe(tiny(), [tokens[:1], tokens[1:2]])
    cells = {("tiny-llama", "dense", "python-docs"): {"result": found}}
    pooled = norm_study.pooled_products(cells)["tiny-llama", "python-docs"]
    together = norm_study.observe(tiny(), [tokens[:2]])["products"][0]
    for one, other in zip(pooled, together, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-3)
    view = views(tiny(), tokens[:1])[3]
    A, V = view.attention[0, 1].double(), view.value_states[0, 1].double()
    assert found["ratios"][0][3][1] == pytest.approx(((A @ V).norm() / V.norm()).item(), rel=1e-6)
    rest = A[1:, 1:] / A[1:, 1:].sum(-1, keepdim=True)
    assert found["ratios without first"][0][3][1] == pytest.approx((rest @ V[1:]).norm().item() / V[1:].norm().item())
