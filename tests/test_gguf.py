"""GGUF files of pruned models: llama.cpp, run by other people's code, has to say what our models
say.
"""

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
HARP = PruningPlan.value_only(6, [0.8, 0.2, 0.0])
ENGINE = """
import json, sys
from harp_lib.evaluation.llama_cpp import LETTERS, LlamaCpp
prompts, context, cache = json.loads(sys.argv[1])
for path in sys.argv[2:]:
    engine, said = LlamaCpp(path, context, cache, verbosity=5), []
    for prompt in prompts:
        first = engine.ask(prompt, 1, n_probs=5, grammar=LETTERS)  # a token without text would not be reported
        top = first["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        top = {each["id"]: each["logprob"] for each in top}
        said.append([first["usage"]["prompt_tokens"], top, engine.write(prompt, 16)["text"]])
    print("\\n" + json.dumps(said), flush=True)
    del engine
"""


def llama_cpp(paths, prompts, context=512, cache="F32"):
    """Of each file what llama.cpp says after each prompt, in a process of its own; and the MiB of
    its KV cache.
    """
    pytest.importorskip("xllamacpp", reason="llama.cpp's bindings (xllamacpp) are not installed")
    command = [
        sys.executable,
        "-c",
        ENGINE,
        json.dumps([prompts, context, cache]),
        *map(str, paths),
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[[")]
    sizes = filter(
        None, map(float, re.findall(r"KV buffer size = +([\d.]+) MiB", done.stderr + done.stdout))
    )
    return list(zip(said, sizes, strict=True))


def llama3() -> PreTrainedModel:
    """The tiny Llama with positions as Llama 3.1 has them: frequencies of several factors."""
    model = tiny_model("tiny-llama")
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    model.config.rope_parameters = rope | {"original_max_position_embeddings": 64}
    twin = type(model)(model.config).eval()
    twin.load_state_dict(model.state_dict())
    return twin


def sentencepiece() -> PreTrainedTokenizerFast:
    """A tokenizer as Llama 2's: merges of whole words with ▁ for blanks, other characters by their
    bytes.
    """
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
    """By name: model, tokenizer, what llama.cpp says after each text, MiB of its KV cache. One
    process for all.
    """
    folder, tokenizer = tmp_path_factory.mktemp("gguf"), tiny_tokenizer()
    cases = {
        "dense": (tiny_model("tiny-llama"), tokenizer, "f32"),
        "harp": (apply_plan(tiny_model("tiny-llama"), HARP), tokenizer, "f32"),
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
    for name, (model, with_tokenizer, weights) in cases.items():
        save_gguf(model, with_tokenizer, folder / name, weights)
    answers = llama_cpp([folder / name for name in cases], TEXTS)
    return {name: (*cases[name][:2], *answer) for name, answer in zip(cases, answers, strict=True)}


@pytest.mark.parametrize(
    ("name", "within"),
    [
        (name, 0.01)
        for name in ("dense", "harp", "all kinds", "folded", "llama 3.1", "sentencepiece")
    ]
    + [("f16", 0.05), ("q8_0", 1.0)],
)
@torch.no_grad()
def test_llama_cpp_agrees(name, within, answers):
    model, tokenizer, said, _ = answers[name]
    for text, (count, theirs, _) in zip(TEXTS, said, strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids
        ours = model(ids).logits[0, -1].log_softmax(-1)
        assert count == ids.shape[1], text
        assert max(abs(ours[int(token)] - value) for token, value in theirs.items()) < within
        assert within > 0.01 or {int(token) for token in theirs} == {*ours.topk(5).indices.tolist()}


def test_the_cache_shrinks(answers):
    assert answers["harp"][3] == pytest.approx(
        answers["dense"][3] / 2, abs=0.01
    )  # MiB, as llama.cpp rounds them


@pytest.mark.real_model
@torch.no_grad()
def test_smollm2_writes_the_same(smollm2, tmp_path):
    """Six value-only layers: the same 16 tokens, and for 8,192 tokens a cache of 144 MiB where
    dense takes 180.
    """
    model, tokenizer = smollm2
    save_gguf(model, tokenizer, tmp_path / "dense", "f32")
    apply_plan(model, PruningPlan.value_only(30, [0.3, 0.5, 0.7, 0.1, 0.3, 0.6]))
    save_gguf(model, tokenizer, tmp_path / "harp", "f32")
    prompt = "The capital of France is"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    written = model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :]
    (_, dense), (((_, top, text),), harp) = llama_cpp(
        [tmp_path / "dense", tmp_path / "harp"], [prompt], 8192, "F16"
    )
    assert (dense, harp) == (180, 144)
    assert text == tokenizer.decode(written)
    ours = model(ids).logits[0, -1].log_softmax(-1)
    assert max(abs(ours[int(token)] - value) for token, value in top.items()) < 0.01


@pytest.mark.parametrize(
    ("name", "pruned", "said"),
    [
        ("tiny-qwen2", None, "qwen2 models"),
        ("tiny-gemma2", None, "gemma2 models"),
        ("tiny-llama", "flap", "make up for"),
        ("tiny-llama", "yarn", "'yarn'"),
        ("tiny-mistral", "window", "sliding window of 16"),
    ],
)
def test_refused_by_name(name, pruned, said, tokens, tmp_path):
    model = tiny_model(name)
    if pruned == "flap":
        apply_plan(model, make_plan("flap", model, tokens, kv_groups=3))
    if pruned == "yarn":
        model.config.rope_parameters |= {"rope_type": "yarn", "factor": 2.0}
    if pruned == "window":
        model.config.sliding_window = 16
    with pytest.raises(ValueError, match=said):
        save_gguf(model, tiny_tokenizer(), tmp_path / "model.gguf")
    assert not [*tmp_path.iterdir()]


def test_unknown_weights_and_tokenizers_are_refused(tmp_path):
    model, tokenizer = tiny_model("tiny-llama"), tiny_tokenizer()
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
