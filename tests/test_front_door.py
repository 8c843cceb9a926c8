"""What stands at the front: README and CONTRIBUTING, the drawing, the hours, the citation, the
hooks.
"""

import re
import runpy
import subprocess
import sys
import tomllib

import nbformat
import pandas as pd
import pytest
import yaml
from helpers import CHECKOUT, Checkout

from harp_lib import PruningPlan, __version__, config, methods

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
SMALLER = {  # the same code on a random tiny model
    '"smollm2-135m"': '"tiny-llama"',
    "num_layers=6": "num_layers=2",
    "kv_groups=18, layers=range(12, 30)": "kv_groups=2, layers=range(2, 6)",
}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "data/mini/README.md"])
def test_links_lead_somewhere(page):
    file = CHECKOUT / page
    text = re.sub(r"```.*?```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (file.parent / target).exists(), target
    for name in re.findall(r"`((?:harp_lib|tests|data|figures)/[\w./-]+)`", text):
        assert (CHECKOUT / name).exists() or name == "data/results", name


def test_the_code_of_the_front_page_runs(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for shown, smaller in SMALLER.items():
        assert shown in "".join(blocks)
        blocks = [block.replace(shown, smaller) for block in blocks]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_texts.txt").write_text(
        "A first text, which is short.\nA second text of ten words or a few.\n"
    )
    names = {}
    exec(blocks[0], names)
    assert (
        PruningPlan.from_dict(names["model"].config.pruning_plan) == names["plan"]
    )  # it was loaded again
    for block in blocks[1:]:
        exec(block, names)
    assert (tmp_path / "harp.gguf").stat().st_size > 100_000
    assert 0 < float(capsys.readouterr().out.splitlines()[-1]) < 1


HOURS = str(CHECKOUT / "data" / "costs" / "paper_hours.py")


def test_hours_are_counted_and_told():
    counted = runpy.run_path(HOURS)["table"]()
    stored = pd.read_csv(CHECKOUT / "data" / "costs" / "paper_hours.csv", dtype={"notebook": str})
    pd.testing.assert_frame_equal(counted, stored)
    hours = stored.set_index("notebook").iloc[:, 1]
    told = re.search(
        r"05 takes at most (\d+) hours, 07 at most (\d+), 06 at most (\d+), 03, 04 and\n08 some (\d+)",
        README,
    )
    counted = [*hours[["05", "07", "06"]], round(hours[["03", "04", "08"]].sum())]
    assert [float(number) for number in told.groups()] == counted


def test_hours_grow_with_the_catalogue(monkeypatch):
    profile = config.load_profile("paper")
    model = profile["models"][0]
    before = runpy.run_path(HOURS)["hours"](profile, model)
    monkeypatch.setattr(methods, "TITLES", methods.TITLES | {"another": "Another"})
    after = runpy.run_path(HOURS)["hours"](profile, model)
    for notebook in ("05", "07"):
        plans = after[notebook].total() / before[notebook].total() * (len(methods.TITLES) - 1)
        assert plans == pytest.approx(len(methods.TITLES))
    assert after["04"]["perplexities"] > before["04"]["perplexities"]
    assert after["06"] == before["06"]


def test_the_drawing_is_the_committed_one(tmp_path):
    subprocess.run(
        [sys.executable, CHECKOUT / "figures" / "draw_harp.py", tmp_path / "harp.svg"], check=True
    )
    assert (tmp_path / "harp.svg").read_bytes() == (CHECKOUT / "figures" / "harp.svg").read_bytes()


def test_the_citation_is_of_this_version_and_of_the_paper():
    citation = yaml.safe_load((CHECKOUT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    (bibtex,) = re.findall(r"```bibtex\n(.*?)```", README, re.DOTALL)
    for said in ("title", "year", "url"):
        assert f"{{{citation['preferred-citation'][said]}}}" in bibtex


def test_the_lock_pins_what_the_project_asks_for():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    pinned = re.findall(
        r"^([\w.-]+)==", (CHECKOUT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE
    )
    pinned = {re.sub(r"[-_.]+", "-", name).lower() for name in pinned}
    assert {
        re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", name)[0]).lower() for name in asked
    } <= pinned


def test_style():
    """What the hooks say: ruff's rules and form, and notebook sources without outputs."""
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, CHECKOUT], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    for source in CHECKOUT.glob("notebooks/*.ipynb"):
        cells = nbformat.read(source, as_version=4).cells
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), (
            source.name
        )


def test_a_book_of_nothing_is_refused(tmp_path):
    empty = Checkout(tmp_path / "empty", {"01_one": ""})
    (empty.root / "README.md").write_text("# HARP", encoding="utf-8")
    code, shown = empty.run(command="book")
    assert code != 0
    assert (
        "no executed notebook of the profile 'smoke': ./run_all.sh --profile smoke first" in shown
    )
