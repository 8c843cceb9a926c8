"""The paper profile, end to end: a random model of two layers, official tasks and shots, one question each."""

import json
import random
import shutil

import pytest
import torch
from test_notebooks import run

from harp_lib import paths
from harp_lib.experiments.score_study import EXPERIMENT
from harp_lib.experiments.score_study import LONGBENCH as LONG_EXPERIMENT
from harp_lib.measure.benchmarks import ALL_BENCHMARKS, LONGBENCH, at_hand
from harp_lib.measure.tiny import tiny_model, tiny_tokenizer
from harp_lib.results import read_results


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A folder with rows for every official task, those of a group all from one that is embedded, and a text."""
    folder = tmp_path_factory.mktemp("rows")
    for benchmark in ALL_BENCHMARKS.values():
        embedded = next(iter(at_hand(benchmark, "embedded")))
        for task in benchmark.subtasks():
            (folder / task).mkdir()
            for split in filter(None, (benchmark.split, benchmark.shots_split)):
                source = paths.DATA / "mini" / embedded / f"{split}.jsonl"
                lines = source.read_text(encoding="utf-8").splitlines()
                (folder / task / f"{split}.jsonl").write_text("\n".join(4 * lines) + "\n", encoding="utf-8")
    words = ["the", "of", "a", "layer", "token", "head", "model", "text", "value", "query", "key", "and", "in", "is"]
    draw = random.Random(0)
    (folder / "wikitext").mkdir()
    for split, pages, length in (("train", 8, 20_000), ("validation", 2, 3_000), ("test", 2, 200)):
        texts = (" ".join(draw.choices(words, k=length)) for _ in range(pages))
        lines = [json.dumps({"page": f" = Page = \n {text} . \n"}) for text in texts]
        (folder / "wikitext" / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A two-layer model that ends most answers soon: a random one would write on to the limit of 1,024 tokens."""
    model, tokenizer, folder = tiny_model("tiny-llama"), tiny_tokenizer(), tmp_path_factory.mktemp("tiny-llama")
    config = model.config
    config.num_hidden_layers, config.max_position_embeddings = 2, 8192
    torch.manual_seed(0)
    model = type(model)(config)
    model.get_output_embeddings().weight.data[tokenizer.eos_token_id] *= 40
    model.save_pretrained(folder)
    tokenizer.model_max_length = 8192
    tokenizer.save_pretrained(folder)
    return folder


def test_the_paper_profile_end_to_end(rows, model, tmp_path):
    """Notebooks 05 to 07, with two processes on the CPU in place of one for each GPU."""
    (tmp_path / "data").mkdir()
    for folder in ("configs", "costs", "paper", "mini"):
        (tmp_path / "data" / folder).symlink_to(paths.DATA / folder)
    shutil.copytree(paths.PROFILES, tmp_path / "data" / "profiles")
    profile = tmp_path / "data" / "profiles" / "paper.yaml"
    text = profile.read_text(encoding="utf-8")
    assert "workers: gpus" in text
    profile.write_text(text.replace("workers: gpus", "workers: 2"), encoding="utf-8")
    (tmp_path / "notebooks").mkdir()
    for source in paths.NOTEBOOKS.glob("0[567]_*.ipynb"):
        (tmp_path / "notebooks" / source.name).symlink_to(source)
    options = ["--profile", "paper", "--datasets", str(rows), "--limit", "1", "--models", str(model)]
    done = run(tmp_path, "run", "--only", "05,06,07", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    long = read_results("paper", LONG_EXPERIMENT, roots=[tmp_path / "data" / "results"])
    assert len(long) == 7 * len(LONGBENCH)
    assert {cell["inputs"]["context"] for cell in long.values()} == {4096}
    assert all(cell["result"]["scores"] for cell in long.values()), "none failed"
    cells = read_results("paper", EXPERIMENT, roots=[tmp_path / "data" / "results"])
    assert len(cells) == 7 * 11
    assert not [key for key, cell in cells.items() if "failed" in cell["result"]]
    shown = {(key[2], len(cell["result"]["subtasks"]), cell["inputs"]["shots"]) for key, cell in cells.items()}
    assert {
        ("mmlu", 57, 5),
        ("bbh_cot_fewshot", 27, 3),
        ("leaderboard_math_hard", 7, 4),
        ("arc_challenge", 1, 25),
    } < shown
    assert (tmp_path / "figures" / "paper" / "tables").is_dir()
