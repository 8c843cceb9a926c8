"""Notebooks: what the sources look like, and that they run, in two profiles, and tell what was measured there."""

import hashlib
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import nbformat
import pytest
from checkouts import Checkout, differences
from test_expected_cells import unlike_stored

from harp_lib import paths
from harp_lib.profiles import load_profile
from harp_lib.tables import TIMED

SOURCES = sorted(paths.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
EXECUTED = sorted((paths.NOTEBOOKS / "executed" / "mini").glob("*.ipynb"))
# Figures with decimals or per cent are measurements, but for section numbers and the grid of alpha.
MEASURED = re.compile(r"\d+\.\d+|\d+ ?%")
NOT_MEASURED = re.compile(r"Section \d+\.\d+|\b0\.1\b|95 ?%|[A-Za-z][\w-]*-?\d+\.\d+\S*")


def ids(paths):
    return [path.stem for path in paths]


@pytest.mark.parametrize("source", SOURCES, ids=ids(SOURCES))
class TestSources:
    def test_outputs_are_stripped(self, source):
        cells = nbformat.read(source, as_version=4).cells
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)

    def test_parameters_are_plain_literals(self, source):
        notebook = nbformat.read(source, as_version=4)
        (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
        values = {}
        exec(cell.source, {}, values)
        assert {"profile": "mini", "models": None, "seed": 0}.items() <= values.items()
        assert notebook.metadata.kernelspec.name == "python3"

    def test_prose_holds_no_measured_number(self, source):
        for cell in nbformat.read(source, as_version=4).cells:
            if cell.cell_type == "markdown":
                assert not MEASURED.findall(NOT_MEASURED.sub("", cell.source)), cell.source

    def test_functions_live_in_the_library(self, source):
        for cell in nbformat.read(source, as_version=4).cells:
            if cell.cell_type == "code":
                assert not re.search(r"^\s*(def|class) ", cell.source, re.MULTILINE), cell.source


def test_every_notebook_has_been_executed():
    assert ids(EXECUTED) == ids(SOURCES)


def test_committed_figures_can_be_redrawn(tmp_path):
    """What is committed hangs together: reference results, profile, figures and tables."""
    if (paths.RESULTS / "mini").is_dir():
        pytest.skip("this checkout ran the profile mini: its figures are of its own results, not of the reference")
    for folder in ("configs", "costs", "profiles", "paper", "reference"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / folder).symlink_to(paths.DATA / folder)
    done = run(tmp_path, "figures")
    assert done.returncode == 0, done.stderr
    for table in (tmp_path / "figures" / "mini" / "tables").glob("*.md"):
        assert table.read_text() == (paths.FIGURES / "mini" / "tables" / table.name).read_text(), table.name
    documents = load_profile("mini")["alpha_search"]["documents"]
    assert f"| {documents} " in (paths.FIGURES / "mini" / "tables" / "alpha_perplexity.md").read_text()


@pytest.mark.parametrize("executed", EXECUTED, ids=ids(EXECUTED))
def test_executed_notebooks_belong_to_their_sources(executed):
    notebook = nbformat.read(executed, as_version=4)
    source = paths.NOTEBOOKS / executed.name
    assert notebook.metadata.harp.source_sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    text = executed.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(home|root|tmp|Users|work|mnt|opt)/", text), "a path of somebody's machine"
    assert not any(output.output_type == "error" for cell in notebook.cells for output in cell.get("outputs", []))


def run(checkout, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "harp_lib.cli", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"HARP_ROOT": str(checkout), "JUPYTER_PREFER_ENV_PATH": "1", "OMP_NUM_THREADS": "1"},
    )


def outputs(checkout, profile, name):
    notebook = nbformat.read(checkout / "notebooks" / "executed" / profile / name, as_version=4)
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def markdown(checkout, profile, name):
    shown = outputs(checkout, profile, name)
    return "\n".join(output.data["text/markdown"] for output in shown if "text/markdown" in output.get("data", {}))


EVERY = [source.name[:2] for source in SOURCES]
RUNS = {  # options, models and notebooks
    "smoke": ((), ["tiny random Llama", "tiny random Gemma-2"], EVERY),
    "mini": (
        ("--models", "tiny-qwen2", "--limit", "4", "--only", "03,04,05,08"),
        ["tiny random Qwen2"],
        ["03", "04", "05", "08"],
    ),
}
AGAIN = "smoke, again"
SMOKE = pytest.mark.parametrize("finished", ["smoke"], indirect=True)


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory):
    """Checkouts without results, also without the committed ones; in one, everything is done once more."""
    folder = tmp_path_factory.mktemp("checkouts")
    return {name: Checkout(folder / name) for name in (*RUNS, AGAIN)}


@pytest.fixture(scope="module")
def started(checkouts):
    """All runs side by side: tiny models use one core each."""
    commands = {name: ("--profile", name, *options) for name, (options, *_) in RUNS.items()}
    commands[AGAIN] = ("--profile", "smoke")
    with ThreadPoolExecutor() as pool:
        yield {name: pool.submit(run, checkouts[name].root, "run", *options) for name, options in commands.items()}


@pytest.fixture(scope="module", params=RUNS)
def finished(started, request):
    """A finished run of all notebooks: profile, models."""
    done, (_, models, _) = started[request.param].result(), RUNS[request.param]
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr
    return request.param, models


@pytest.fixture(scope="module")
def checkout(checkouts, finished):
    """Where it ran."""
    return checkouts[finished[0]].root


@pytest.mark.parametrize("name", ids(SOURCES))
def test_what_notebooks_print(checkout, finished, name):
    profile, models = finished
    if name[:2] not in RUNS[profile][2]:
        pytest.skip(f"not among those that are run in the profile {profile}")
    text = markdown(checkout, profile, f"{name}.ipynb")
    assert all(model in text for model in models)
    assert not re.search(r"\| nan|\| inf|\bnan\b", text)
    streams = [o.text for o in outputs(checkout, profile, f"{name}.ipynb") if o.get("name") == "stderr"]
    lines = [line for text in streams for line in re.split(r"[\r\n]", text) if line.strip()]
    assert all(re.match(r"[\w ,]+: +\d+%\|", line) for line in lines), "bars alone go to stderr"


@SMOKE
def test_theory_notebooks(checkout, finished):
    profile, models = finished
    text = markdown(checkout, profile, "01_similarity.ipynb")
    assert re.search(r"Lemma 1, HW +\|.*\| holds", text)
    assert re.search(r"Theorem 1 +\|.*`equal_rows_with_rotary_positions\(\)`", text)
    whole = markdown(checkout, profile, "02_norm_change.ipynb").split("## Verdict")[-1]
    for model in models:
        assert re.search(rf"Sim\(H\) comes near 1 in high layers +\| {model}", whole), "notebook 01's rows"
        assert re.search(rf"the searched α brings the norm back, at the top +\| {model}", whole)
    assert "open: the checks disagree" not in text + whole


def test_alpha_search_notebook(checkout, finished):
    profile, models = finished
    text = markdown(checkout, profile, "03_alpha_search.ipynb")
    for model in models:
        assert re.search(rf"searching α beats leaving it at 1 +\| {model}", text)
        assert re.search(rf"hidden states can be reused +\| {model}.*holds, with the same α", text)


def test_baselines_notebook(checkout, finished):
    profile, models = finished
    text = markdown(checkout, profile, "04_baselines.ipynb")
    for model in models:
        assert len(re.findall(rf"HARP\+FLAP beats [\w-]+, as many parameters removed +\| {model}", text)) == 4
        assert re.search(rf"\| {model} +\| LLM-Pruner +\| \d", text), "its tuned range"
    assert re.search(r"the printed pruning ratios follow from the configs .*8 of 8 to the printed digit", text)


def test_main_tables_notebook(checkout, finished):
    profile, models = finished
    text = markdown(checkout, profile, "05_main_tables.ipynb")
    assert "Every method has a score on every benchmark." in text
    for model in models:
        assert len(re.findall(rf"\| {model} +\| HARP\+FLAP +\| +\d+\.\d\d % ", text)) == 2, "both tables"
        assert re.search(rf"HARP\+FLAP has the highest average on generation tasks, as .* \| {model}", text)
    assert re.search(r"\| LLaMA3\.1-8B \(paper\) +\| HARP\+FLAP +\| 4\.8 % +\| 1/4 .*31\.77", text)


@SMOKE
def test_ablations_notebook(checkout, finished):
    profile, models = finished
    text = markdown(checkout, profile, "06_ablations.ipynb")
    assert "No score is missing." in text
    for model in models:
        for other in ("Bottom", "Hessian", "Similarity"):
            assert re.search(rf"Top beats {other} on discriminative tasks, at α = 1 +\| {model}", text)
        assert re.search(rf"the higher a layer, the less it costs to remove its queries and keys +\| {model}", text)


@SMOKE
def test_longbench_notebook(checkout, finished):
    profile, models = finished
    text = markdown(checkout, profile, "07_longbench.ipynb")
    assert "Every method has a score on every benchmark." in text
    assert len(re.findall(r"\| Code +\| RB-P +\|(?:[^|]*\d+\.\d\d[^|]*\|){7}", text)) == len(models) + 1, (
        "the paper too"
    )
    for model in models:
        assert re.search(rf"HARP\+FLAP has the highest number of first places[^|]* \| {model}", text)
    assert re.search(r"\| LLaMA3\.1-8B \(paper\) +\| Single-Document QA +\| NrtvQA +\| 20\.32 ", text)


def test_efficiency_notebook(checkout, finished):
    profile, models = finished
    text = markdown(checkout, profile, "08_efficiency.ipynb")
    for model in models:
        assert re.search(rf"the KV cache shrinks to exactly the layers[^|]*\| {model} +\|[^|]*\| holds", text)
        assert re.search(rf"\| {model} +\| thinned out +\| \d+ of \d+", text)
    assert re.search(r"\| LLaMA3\.1-8B \(paper, H100\) +\| 65,536 +\| HARP +\| 4\.5394 ± 0\.0063 +\| 16\.7 %", text)


@SMOKE
def test_the_same_again_from_scratch_gives_the_same_tables(checkout, finished, started, checkouts):
    done = started[AGAIN].result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert differences(checkouts["smoke"], checkouts[AGAIN]) == []
    assert len(list((checkout / "figures" / "smoke" / "tables").glob("*.csv"))) > 2 * len(TIMED)


@SMOKE
def test_the_cells_were_known_before(checkout, finished):
    assert unlike_stored(load_profile("smoke"), checkout / "data" / "results") == {}


@SMOKE
def test_start_here_notebook(checkout, finished):
    text = markdown(checkout, "smoke", "00_start_here.ipynb")
    assert "this checkout" in text
    assert "the committed reference run" not in text


@SMOKE
def test_a_second_run_reads_and_figures_are_redrawn(checkout, finished):
    profile, _ = finished
    again = run(checkout, "run", "--profile", profile, "--jobs", "2", "--only", ",".join(EVERY[1:]))
    assert len(re.findall(r"^0\d_\w+ +done +\d+ +\d+ read ", again.stdout, re.MULTILINE)) == 8, again.stdout
    assert "computed" not in again.stdout
    folder = checkout / "figures" / profile
    drawn = {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*.*")}
    for file in drawn:
        (folder / file).unlink()
    redrawn = run(checkout, "figures", "--profile", profile)
    assert redrawn.returncode == 0, redrawn.stderr
    assert {file.relative_to(folder) for file in folder.rglob("*.*")} == set(drawn)
    for file, content in drawn.items():
        assert (folder / file).read_bytes() == content, f"{file} is not what the notebook drew"


def test_figures_without_results(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "profiles").symlink_to(paths.PROFILES)
    done = run(tmp_path, "figures", "--profile", "smoke")
    assert done.returncode == 1
    assert "run ./run_all.sh --profile smoke first" in done.stderr
    assert not (tmp_path / "figures").exists()
