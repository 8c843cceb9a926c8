"""README and CONTRIBUTING, the drawing, the counted hours, the citation, the lock and the hooks."""

import re
import runpy
import shutil
import subprocess
import sys
import tomllib

import nbformat
import pandas as pd
import pytest
import yaml
from checkouts import Checkout
from helpers import CHECKOUT

from harp_lib import PruningPlan, __version__

COUNT_HOURS = str(CHECKOUT / "data" / "costs" / "paper_hours.py")
PAGES = sorted(str(file.relative_to(CHECKOUT)) for file in (CHECKOUT / "docs").glob("*.md"))


def text_of(page):
    return (CHECKOUT / page).read_text(encoding="utf-8")


README = text_of("README.md")
SMALLER = {  # the same code on a random tiny model
    '"smollm2-135m"': '"tiny-llama"',
    "num_layers=6": "num_layers=2",
    "lowest_layers(scores, 6)": "lowest_layers(scores, 2)",
    "kv_groups=18, layers=range(12, 30)": "kv_groups=2, layers=range(2, 6)",
}


def test_a_clone_has_the_same_line_ends_everywhere(tmp_path):
    """Also one that is made as git does it on Windows."""
    for name in (".gitattributes", "run_all.sh"):
        shutil.copy(CHECKOUT / name, tmp_path)
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@b"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "all"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    clone = ["clone", "--quiet", "-c", "core.autocrlf=true", "-c", "core.eol=crlf"]
    subprocess.run([*git, *clone, ".", "clone"], cwd=tmp_path, check=True)
    assert b"\r" not in (tmp_path / "clone" / "run_all.sh").read_bytes()


def stored_hours():
    return pd.read_csv(CHECKOUT / "data" / "costs" / "paper_hours.csv", dtype={"notebook": str})


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "data/mini/README.md", *PAGES])
def test_links_lead_somewhere(page):
    file = CHECKOUT / page
    text = re.sub(r"```.*?```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (file.parent / target).exists(), target
    for name in re.findall(r"`((?:harp_lib|tests|data|figures)/[\w./-]+)`", text):
        assert (CHECKOUT / name).exists() or name.startswith("data/results"), name


def test_the_code_of_the_library_page_runs(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", text_of("docs/library.md"), re.DOTALL)
    for shown, smaller in SMALLER.items():
        assert shown in "".join(blocks)
        blocks = [block.replace(shown, smaller) for block in blocks]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_texts.txt").write_text(
        "A first text, which is short.\nA second text of ten words or a few.\n"
    )
    variables = {}
    exec(blocks[0], variables)
    plan_of_loaded = PruningPlan.from_dict(variables["model"].config.pruning_plan)
    assert plan_of_loaded == variables["plan"]
    for block in blocks[1:]:
        exec(block, variables)
    assert (tmp_path / "harp.gguf").stat().st_size > 100_000
    assert 0 < float(capsys.readouterr().out.splitlines()[-1]) < 1


def test_stored_hours_are_the_counted_ones():
    counted = runpy.run_path(COUNT_HOURS)["table"]()
    pd.testing.assert_frame_equal(counted, stored_hours())


def test_the_page_on_full_size_gives_the_stored_hours():
    hours = stored_hours().set_index("notebook").iloc[:, 1]
    sentence = (
        r"very roughly (\d+) hours: notebook 05 \(benchmarks\) (\d+), 07 \(LongBench\) (\d+), "
        r"06 \(other layers\) (\d+), and 03, 04 and 08 together (\d+)"
    )
    page = " ".join(text_of("docs/full-size.md").split())
    total, *on_page = [float(number) for number in re.search(sentence, page).groups()]
    assert on_page == [*hours[["05", "07", "06"]], round(hours[["03", "04", "08"]].sum())]
    assert total == round(hours.sum(), -1)
    assert f"very roughly {round(hours.sum() / 24)} days" in page


def test_git_keeps_pictures_and_numbers_of_small_alone():
    folders = ["figures", "notebooks/executed"]
    git = ["git", "-C", CHECKOUT, "ls-files", *folders]
    listed = subprocess.run(git, capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip("this is no git checkout")
    kept = r"figures/(draw_harp\.py|harp\.svg)"
    kept += r"|figures/small/(\w+\.(png|csv)|tables/\w+\.(csv|md)|verdicts/\w+\.csv)"
    kept += r"|notebooks/executed/small/\w+\.ipynb"
    assert not [name for name in listed.stdout.split() if not re.fullmatch(kept, name)]


def test_the_drawing_is_the_committed_one(tmp_path, monkeypatch):
    drawn = tmp_path / "harp.svg"
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nsavefig.facecolor: black\n")
    monkeypatch.setenv("MATPLOTLIBRC", str(tmp_path))
    subprocess.run([sys.executable, CHECKOUT / "figures" / "draw_harp.py", drawn], check=True)
    assert drawn.read_bytes() == (CHECKOUT / "figures" / "harp.svg").read_bytes()


def test_the_citation_is_of_this_version_and_of_the_paper():
    citation = yaml.safe_load((CHECKOUT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    (bibtex,) = re.findall(r"```bibtex\n(.*?)```", README, re.DOTALL)
    for entry in ("title", "year", "url"):
        assert f"{{{citation['preferred-citation'][entry]}}}" in bibtex


def normalized(package):
    """A package's name as the index spells it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def test_the_lock_pins_what_the_project_requires():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        requirements.extend(extra)
    required = {normalized(re.match(r"[\w.-]+", line)[0]) for line in requirements}
    lock = (CHECKOUT / "requirements.lock").read_text(encoding="utf-8")
    pinned = {normalized(name) for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}
    assert required <= pinned


@pytest.mark.parametrize("arguments", ["check", "format --check"])
def test_ruff_has_no_complaint(arguments):
    command = [sys.executable, "-m", "ruff", *arguments.split(), CHECKOUT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_notebook_sources_have_no_outputs():
    for source in CHECKOUT.glob("notebooks/*.ipynb"):
        for cell in nbformat.read(source, as_version=4).cells:
            assert not cell.get("outputs"), source.name
            assert not cell.get("execution_count"), source.name


def test_a_book_of_nothing_is_refused(tmp_path):
    empty = Checkout(tmp_path / "empty", {"01_one": ""})
    (empty.root / "README.md").write_text("# HARP", encoding="utf-8")
    code, shown = empty.run(command="book")
    assert code != 0
    refusal = "no executed notebook of the profile 'smoke': ./run_all.sh --profile smoke first"
    assert refusal in shown
