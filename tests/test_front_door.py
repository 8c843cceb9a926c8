"""README and what stands beside it: what they show exists, runs, and says what the committed tables say."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import yaml

from harp_lib import PruningPlan, __version__, cli, drawing, front_page, paths
from harp_lib.baseline_frames import TITLE
from harp_lib.methods import BASELINES
from harp_lib.paper_claims import OUTCOMES

README = (paths.ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ("README.md", "CONTRIBUTING.md")
CODE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^(\./run_all\.sh[^#\n]*)", README, re.MULTILINE)
SMALLER = {  # the same code on a random tiny model
    '"smollm2-135m"': '"tiny-llama"',
    "num_layers=6": "num_layers=2",
    "kv_groups=18, layers=range(12, 30)": "kv_groups=2, layers=range(2, 6)",
}


def test_the_drawing_is_the_committed_one(tmp_path):
    drawing.draw(tmp_path / "harp.svg")
    assert (tmp_path / "harp.svg").read_bytes() == front_page.DRAWING.read_bytes()


def test_blocks_say_what_the_tables_say():
    if (paths.RESULTS / front_page.PROFILE).is_dir():
        pytest.skip("this checkout ran the profile mini: its tables are of its own results, not of the reference")
    assert front_page.rendered(README) == README, "run python -m harp_lib.front_page"


def test_every_block_is_on_the_page():
    assert re.findall(r"<!-- begin (\w+) -->\n", README) == list(front_page.BLOCKS)


def test_a_block_written_by_hand_is_written_again():
    changed = README.replace("| HARP ", "| HARP the best ")
    assert changed != README
    assert front_page.rendered(changed) == front_page.rendered(README)


def test_blocks_follow_the_tables(tmp_path, monkeypatch):
    shutil.copytree(front_page.TABLES, tmp_path, dirs_exist_ok=True)
    texts = pd.read_csv(tmp_path / "baseline_perplexity.csv")
    texts.loc[texts["method"] == "flap", ["harp+flap change", "harp+flap low", "harp+flap high"]] = 0.3, 0.2, 0.4
    texts.to_csv(tmp_path / "baseline_perplexity.csv", index=False)
    pd.DataFrame({"outcome": [OUTCOMES[0], OUTCOMES[2], OUTCOMES[0]]}).to_csv(tmp_path / "claims.csv", index=False)
    before = front_page.results()
    monkeypatch.setattr(front_page, "TABLES", tmp_path)
    assert re.search(r"- perplexity: ahead of .*FLAP;", front_page.results())
    assert not re.search(r"- perplexity: ahead of .*FLAP;", before)
    assert f"3 claims of the paper, each judged: **2 {OUTCOMES[0]}** and **1 {OUTCOMES[2]}**" in front_page.claims()
    (tmp_path / "claims.csv").unlink()
    with pytest.raises(FileNotFoundError):
        front_page.claims()


def test_hours_are_a_bound_where_answers_dominate_and_none_where_cells_are_left_out():
    rows = [line.split(" | ") for line in front_page.full_size().splitlines()[2:]]
    hours = {row[0].strip("| "): row[3].strip() for row in rows}
    assert [number for number, said in hours.items() if said == "not counted"] == ["01", "02"]
    assert [number for number, said in hours.items() if said.startswith("at most ")] == ["05", "06", "07"]


def test_ahead_means_a_better_score():
    """The differences, paired by question, point the way in which the averages differ."""
    texts = pd.read_csv(front_page.TABLES / "baseline_perplexity.csv").query("split == 'validation'")
    texts = texts[texts["corpus"] == front_page.TEXT]
    averages = front_page.glance_table(texts).set_index("method").map(lambda text: float(text.split()[0]))
    for measure, intervals in front_page.leads(texts).items():
        for name in BASELINES:
            ahead = averages.loc["HARP+FLAP", measure] - averages.loc[TITLE[name], measure]
            assert intervals[name].value * (-ahead if measure == "perplexity" else ahead) >= 0, (measure, name)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", (paths.ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    assert targets
    for target in targets:
        assert target.startswith("https://") or (paths.ROOT / target).exists(), target
    for name in re.findall(r"`((?:harp_lib|tests|data)/[\w./-]+)`", text):
        assert (paths.ROOT / name).exists() or name == "data/results", name


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_accepted(command, tmp_path, monkeypatch):
    for folder, file in (("my-model", "config.json"), ("benchmarks", "README.md")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).touch()
    monkeypatch.chdir(tmp_path)
    assert cli.check(shlex.split(command)[1:]) in (0, cli.HELP_SHOWN)


def test_the_code_runs_and_is_short(tmp_path, monkeypatch, capsys):
    own_model, baselines = CODE
    assert len([line for line in own_model.splitlines() if line.strip()]) <= 10
    for shown, smaller in SMALLER.items():
        assert shown in own_model + baselines
        own_model, baselines = (block.replace(shown, smaller) for block in (own_model, baselines))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_texts.txt").write_text("A first text, which is short.\nA second text of ten words or a few.\n")
    names = {}
    exec(own_model, names)
    assert (tmp_path / "my-model-harp" / "pruning_plan.json").is_file()
    assert PruningPlan.from_dict(names["model"].config.pruning_plan) == names["plan"]  # it was loaded again
    exec(baselines, names)
    assert 0 < float(capsys.readouterr().out.splitlines()[-1]) < 1


def test_the_citation_is_whole():
    citation = yaml.safe_load((paths.ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what the format requires
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == __version__
    paper = citation["preferred-citation"]
    assert {"type", "title", "authors"} <= paper.keys()
    (bibtex,) = re.findall(r"```bibtex\n(.*?)```", README, re.DOTALL)
    for said in (paper["title"], paper["year"], paper["url"]):
        assert f"{{{said}}}" in bibtex
    for author in paper["authors"]:
        assert f"{author['given-names']} {author['family-names']}" in bibtex


def test_the_licence_is_named_alike():
    assert (paths.ROOT / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["license"] == "MIT"


@pytest.fixture
def repository(tmp_path):
    """A git repository with the Python files and notebooks of this checkout."""
    listing = [
        "git",
        "ls-files",
        "-co",
        "--exclude-standard",
        "*.py",
        "*.ipynb",
        "*.md",
        "pyproject.toml",
        ".pre-commit*",
    ]
    listed = subprocess.run(listing, cwd=paths.ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this checkout is no git repository")
    folder = tmp_path / "repository"
    for name in filter(lambda name: (paths.ROOT / name).is_file(), listed.stdout.splitlines()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(paths.ROOT / name, folder / name)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def pre_commit(repository):
    """All hooks over all files, with the environment's own ruff and an empty home; no way to the network."""
    nowhere = {f"{scheme}_proxy": "http://localhost:9" for scheme in ("http", "https")}
    inherited = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    environ = (
        inherited | nowhere | {"HOME": str(repository.parent), "PRE_COMMIT_HOME": str(repository.parent / "hooks")}
    )
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "pre_commit", "run", "--all-files", "--color", "never"]
    return subprocess.run(command, cwd=repository, env=environ, capture_output=True, text=True)


def test_the_hooks_pass_and_refuse(repository):
    done = pre_commit(repository)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Passed") == 3
    (repository / "harp_lib" / "bad.py").write_text("import os\nx = {  'a':1}\n", encoding="utf-8")
    notebook = nbformat.read(sorted((repository / "notebooks").glob("*.ipynb"))[0], as_version=4)
    next(cell for cell in notebook.cells if cell.cell_type == "code").execution_count = 1
    nbformat.write(notebook, repository / "notebooks" / "99_run.ipynb")
    subprocess.run(["git", "add", "-A"], cwd=repository, check=True)
    done = pre_commit(repository)
    assert done.returncode == 1
    assert done.stdout.count("Failed") == 3
    assert "99_run.ipynb" in done.stdout
