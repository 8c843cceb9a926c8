"""GGUF files of pruned models: stock llama.cpp has to give the same answers as our models."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from harp_lib import PruningPlan, apply_plan, make_plan, save_gguf
from harp_lib.models.registry import tiny_model, tiny_tokenizer
from harp_lib.pruning.plan import LayerPlan

TEXTS = ["def f(x):\n    return x + 1", " 12 of  345 boxes", "Grüße, “quoted” it's 7"]
PLAN = PruningPlan(
    6,
    {
        5: LayerPlan(0.8, removed_channels=tuple(range(32))),
        4: LayerPlan(0.3),
        3: LayerPlan(0.0),
        1: LayerPlan(removed_groups=(1,), removed_channels=(3, 4, 90)),
        0: LayerPlan(0.5),
    },
)
HARP_PLAN = PruningPlan.value_only(6, [0.8, 0.2, 0.0])
ENGINE = """
import json
import sys
from harp_lib.evaluation.llama_cpp import LETTERS, LlamaCpp
prompts, context, cache = json.loads(sys.argv[1])
for path in sys.argv[2:]:
    engine = LlamaCpp(path, context, cache, verbosity=5)
    answers = []
    for prompt in prompts:
        # Letters only: a token without text would not be reported.
        first = engine.ask(prompt, 1, n_probs=5, grammar=LETTERS)
        candidates = first["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        logprobs = {token["id"]: token["logprob"] for token in candidates}
        text = engine.write(prompt, 16)["text"]
        answers.append([first["usage"]["prompt_tokens"], logprobs, text])
    print("\\n" + json.dumps(answers), flush=True)
    del engine
"""


def run_llama_cpp(code, *arguments):
    """Run Python code that asks llama.cpp: the lists of lists that it prints, and all it shows."""
    pytest.importorskip("xllamacpp", reason="llama.cpp's bindings (xllamacpp) are not installed")
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=900)
    assert process.returncode == 0, process.stderr[-3000:]
    answers = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("[[")]
    return answers, process.stderr + process.stdout


def llama_cpp(paths, prompts, context=512, cache="F32"):
    """llama.cpp's answers for each file, and the MiB of its KV cache, from a separate process.

    There is one answer for each prompt: its number of tokens, the log-likelihoods of five tokens
    that may come next, by id, and 16 tokens of text.
    """
    answers, log = run_llama_cpp(ENGINE, json.dumps([prompts, context, cache]), *paths)
    sizes = [float(size) for size in re.findall(r"KV buffer size = +([\d.]+) MiB", log)]
    nonzero_sizes = [size for size in sizes if size > 0]
    return list(zip(answers, nonzero_sizes, strict=True))


def llama3() -> PreTrainedModel:
    """The tiny Llama with the positions of Llama 3.1, whose frequencies have several factors."""
    model = tiny_model("tiny-llama")
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    model.config.rope_parameters = rope
    twin = type(model)(model.config).eval()
    twin.load_state_dict(model.state_dict())
    return twin


def sentencepiece() -> PreTrainedTokenizerFast:
    """A tokenizer like Llama 2's: ▁ stands for a blank, and unknown characters for their bytes."""
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=special, show_progress=False)
    backend.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    state = json.loads(backend.to_str())
    state["added_tokens"] = state["added_tokens"][:3]
    backend = Tokenizer.from_str(json.dumps(state))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """By name: model, tokenizer, llama.cpp's answer to each text, and MiB of its KV cache.

    One process of llama.cpp answers for all models.
    """
    folder = tmp_path_factory.mktemp("gguf")
    tokenizer = tiny_tokenizer()
    cases = {
        "dense": (tiny_model("tiny-llama"), tokenizer, "f32"),
        "harp": (apply_plan(tiny_model("tiny-llama"), HARP_PLAN), tokenizer, "f32"),
        "all kinds": (apply_plan(tiny_model("tiny-llama"), PLAN), tokenizer, "f32"),
        "folded": (
            apply_plan(tiny_model("tiny-mistral"), PLAN, fold_output=True),
            tokenizer,
            "f32",
        ),
        "llama 3.1": (apply_plan(llama3(), PLAN), tokenizer, "f32"),
        "sentencepiece": (tiny_model("tiny-mistral"), sentencepiece(), "f32"),
        "f16": (apply_plan(tiny_model("tiny-llama"), PLAN), tokenizer, "f16"),
        "q8_0": (apply_plan(tiny_model("tiny-llama"), PLAN), tokenizer, "q8_0"),
    }
    for name, (model, its_tokenizer, weights) in cases.items():
        save_gguf(model, its_tokenizer, folder / name, weights)
    results = llama_cpp([folder / name for name in cases], TEXTS)
    by_name = {}
    for (name, (model, its_tokenizer, _)), result in zip(cases.items(), results, strict=True):
        by_name[name] = (model, its_tokenizer, *result)
    return by_name


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("dense", 0.01),
        ("harp", 0.01),
        ("all kinds", 0.01),
        ("folded", 0.01),
        ("llama 3.1", 0.01),
        ("sentencepiece", 0.01),
        ("f16", 0.05),
        ("q8_0", 1.0),
    ],
)
@torch.no_grad()
def test_llama_cpp_agrees(name, tolerance, answers):
    model, tokenizer, texts, _ = answers[name]
    for text, (num_tokens, logprobs, _) in zip(TEXTS, texts, strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids
        ours = model(ids).logits[0, -1].log_softmax(-1)  # (vocabulary,)
        assert num_tokens == ids.shape[1], text
        for token, logprob in logprobs.items():
            assert abs(ours[int(token)] - logprob) < tolerance, text
        fifth = ours.topk(5).values[-1]
        assert min(ours[int(token)] for token in logprobs) > fifth - 2 * tolerance, text


def test_the_cache_shrinks(answers):
    dense_mib = answers["dense"][3]
    harp_mib = answers["harp"][3]
    assert harp_mib == pytest.approx(dense_mib / 2, abs=0.01)  # as llama.cpp rounds them


@pytest.mark.real_model
@torch.no_grad()
def test_smollm2_writes_the_same(smollm2, tmp_path):
    """Six value-only layers: the same 16 tokens, and for 8,192 tokens 144 MiB instead of 180."""
    model, tokenizer = smollm2
    apply_plan(model, PruningPlan.value_only(30, [0.3, 0.5, 0.7, 0.1, 0.3, 0.6]))
    save_gguf(model, tokenizer, tmp_path / "harp", "f32")
    prompt = "The capital of France is"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    written = model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :]
    [(answers, cache_mib)] = llama_cpp([tmp_path / "harp"], [prompt], 8192, "F16")
    assert cache_mib == 144
    _, logprobs, text = answers[0]
    assert text == tokenizer.decode(written)
    ours = model(ids).logits[0, -1].log_softmax(-1)  # (vocabulary,)
    for token, logprob in logprobs.items():
        assert abs(ours[int(token)] - logprob) < 0.01


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tiny-gemma2", None, r"gemma2 models cannot be .* GGUF \(deci\); llama, mistral can"),
        ("tiny-llama", "flap", "make up for"),
        ("tiny-llama", "yarn", "'yarn' cannot be written; default, linear, llama3"),
        ("tiny-mistral", "window", r"sliding window of 16 tokens has no place in GGUF \(deci\)"),
    ],
)
def test_refused_by_name(name, change, message, tokens, tmp_path):
    model = tiny_model(name)
    if change == "flap":
        apply_plan(model, make_plan("flap", model, tokens, kv_groups=3))
    if change == "yarn":
        model.config.rope_parameters.update(rope_type="yarn", factor=2.0)
    if change == "window":
        model.config.sliding_window = 16
    with pytest.raises(ValueError, match=message):
        save_gguf(model, tiny_tokenizer(), tmp_path / "model.gguf")
    assert not [*tmp_path.iterdir()]


def test_unknown_weights_and_tokenizers_are_refused(tmp_path):
    model = tiny_model("tiny-llama")
    tokenizer = tiny_tokenizer()
    with pytest.raises(ValueError, match="'q3'; choose from f32, f16, q8_0"):
        save_gguf(model, tokenizer, tmp_path / "model.gguf", "q3")
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["pre_tokenizer"] = {"type": "Whitespace"}
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)))
    with pytest.raises(ValueError, match="Whitespace"):
        save_gguf(model, other, tmp_path / "model.gguf")
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0})))
    with pytest.raises(ValueError, match="of type WordLevel"):
        save_gguf(model, other, tmp_path / "model.gguf")
    assert not [*tmp_path.iterdir()]
