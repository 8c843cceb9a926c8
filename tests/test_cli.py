"""``run_all.sh`` as a user meets it: what it refuses, it refuses before anything is installed or written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from harp_lib import cli, cli_values
from harp_lib.measure import model_names

ROOT = Path(__file__).resolve().parents[1]
FILES = ["run_all.sh", "requirements.lock"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A small copy of the checkout, in a folder with a space in its name and without an environment."""
    root = tmp_path_factory.mktemp("some place") / "a checkout"
    shutil.copytree(ROOT / "harp_lib", root / "harp_lib", ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        shutil.copy(ROOT / file, root / file)
    (root / "data" / "profiles").mkdir(parents=True)
    for profile in ("paper", "mini", "smoke"):
        (root / "data" / "profiles" / f"{profile}.yaml").touch()
    (root / "notebooks").mkdir()
    for name in ("03_alpha_search", "10_theory"):
        cell = nbformat.v4.new_code_cell("profile = 'mini'\nseed = 0", metadata={"tags": ["parameters"]})
        metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        notebook = nbformat.v4.new_notebook(cells=[cell], metadata=metadata)
        nbformat.write(notebook, root / "notebooks" / f"{name}.ipynb")
    return root


def call(checkout: Path, *arguments: str, script: Path | None = None, cwd: Path | None = None, **environ: str):
    """Call run_all.sh with no environment activated and no way to the package index."""
    inherited = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    command = [script or checkout / "run_all.sh", *arguments]
    environ = inherited | quiet | environ
    return subprocess.run(command, cwd=cwd or checkout, env=environ, capture_output=True, text=True, timeout=60)


def tree(folder: Path) -> dict[Path, float]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "mnii"], "unknown profile 'mnii'; choose from smoke, mini, paper (did you mean 'mini'?)"),
        (["run", "--only", "3,04"], "unknown notebook '04'; choose from 03, 10"),
        (["--only", "3,,10"], "empty item in '3,,10'"),
        (["--models", "smolm2-135m"], "did you mean 'smollm2-135m'?"),
        (["--models", "tiny-llama,./nowhere"], "model folder './nowhere' does not exist"),
        (["--models", "notebooks"], "unknown model 'notebooks'"),
        (["--models", "./notebooks"], "model folder './notebooks' has no config.json"),
        (["--datasets", "embeded"], "unknown datasets 'embeded'; choose from embedded, hub, or a folder that exists"),
        (["--limit", "0"], "argument --limit: a number of questions, 1 or more, not '0'"),
        (["--limit", "2.5"], "a number of questions, 1 or more, not '2.5'"),
        (["-p", "limit=3"], "parameter 'limit' has an option of its own: --limit"),
        (["-p", "seed"], "malformed parameter 'seed'; write NAME=VALUE"),
        (["-p", "2x=1"], "malformed parameter '2x=1'"),
        (["-p", "models=[a]"], "parameter 'models' has an option of its own: --models"),
        (["--jobs", "0"], "argument --jobs: a number of jobs, 1 or more, not '0'"),
        (["--jobs", "two"], "a number of jobs, 1 or more, not 'two'"),
        (["--job", "2"], "unknown argument '--job' (did you mean --jobs?)"),
        (["--executor", "slrum"], "unknown executor 'slrum'; choose from local, slurm (did you mean 'slurm'?)"),
        (["--dryrun"], "unknown argument '--dryrun' (did you mean --dry-run?)"),
        (["figure"], "unknown command 'figure'; choose from setup, run, test, figures, book (did you mean 'figures'?)"),
        (["boook"], "unknown command 'boook'; choose from setup, run, test, figures, book (did you mean 'book'?)"),
        (["--profil", "mini"], "unknown argument '--profil' (did you mean --profile?)"),
        (["run", "03"], "unknown argument '03'"),
        (["figures", "--force"], "--force goes with 'run', not with 'figures'"),
        (["figures", "--jobs", "2"], "--jobs goes with 'run', not with 'figures'"),
        (["book", "--dry-run"], "--dry-run goes with 'run', not with 'book'"),
        (["setup", "--executor", "local"], "--executor goes with 'run', not with 'setup'"),
        (["--profile", "smoke", "test"], "'test' goes first"),
    ],
)
def test_refuses_bad_input_before_set_up(checkout, arguments, message):
    before = tree(checkout)
    done = call(checkout, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert tree(checkout) == before


def test_shows_help_without_set_up(checkout):
    before = tree(checkout)
    for arguments in (["--help"], ["figures", "-h"], ["test", "--help"]):
        done = call(checkout, *arguments)
        assert done.returncode == 0
        assert "smoke, mini, paper (default: mini)" in done.stdout
    assert tree(checkout) == before


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("sede=1", "03_alpha_search has no parameter 'sede'; it has profile, seed"),
        ("seed=[1", "malformed parameter seed='[1': not YAML"),
    ],
)
def test_refuses_what_only_the_notebooks_and_yaml_know(checkout, monkeypatch, capsys, value, message):
    for name in ("NOTEBOOKS", "RESULTS"):
        monkeypatch.setattr(cli.paths, name, checkout / name.lower())
    before = tree(checkout)
    assert cli.main(["-p", value]) == 2
    assert f"run_all.sh: error: {message}" in capsys.readouterr().err
    assert tree(checkout) == before


def test_refuses_an_interpreter_that_does_not_run(checkout):
    done = call(checkout, "setup", HARP_PYTHON="/nowhere/python")
    assert done.returncode == 1
    assert "no Python 3.11 or newer among: /nowhere/python" in done.stderr


def test_refuses_an_interpreter_that_lacks_packages(checkout, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    before = tree(checkout)
    done = call(checkout, "setup", HARP_PYTHON=str(tmp_path / "bare" / "bin" / "python"))
    assert done.returncode == 1
    assert "lacks absl-py, accelerate, " in done.stderr
    assert tree(checkout) == before


def test_works_from_any_folder_and_through_a_link(checkout, tmp_path):
    link = tmp_path / "link to it"
    link.symlink_to(os.path.relpath(checkout / "run_all.sh", tmp_path))
    (tmp_path / "harp_lib").mkdir()  # must not be taken for ours
    (tmp_path / "harp_lib" / "cli.py").write_text("raise SystemExit(99)", encoding="utf-8")
    done = call(checkout, "setup", script=link, cwd=tmp_path, HARP_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"ready: {sys.executable}\n"


def test_relative_folders_are_the_callers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    options = cli.parse(["--models", "model,tiny-llama,some/model-1.5", "--datasets", "."])
    assert options.models == [str(tmp_path / "model"), "tiny-llama", "some/model-1.5"]
    assert options.datasets == str(tmp_path)


def test_a_notebook_number_may_leave_out_the_zero(checkout, monkeypatch):
    monkeypatch.setattr(cli.paths, "NOTEBOOKS", checkout / "notebooks")
    assert cli.parse(["--only", "10,3,03"]).only == ["10", "03"]


def test_how_a_run_is_spread_is_read():
    options = cli.parse(["--profile", "paper", "--jobs", "16", "--executor", "slurm", "--dry-run"])
    assert (options.command, options.jobs, options.executor, options.dry_run) == ("run", 16, "slurm", True)
    options = cli.parse(["--profile", "smoke"])
    assert (options.jobs, options.executor, options.dry_run) == (None, None, False)
    assert cli.parse(["book", "--profile", "mini"]).command == "book"


def test_a_book_without_executed_notebooks_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli.paths, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(cli.paths, "ROOT", tmp_path)
    assert cli.main(["book", "--profile", "smoke"]) == 1
    assert "no executed notebook of the profile 'smoke'" in capsys.readouterr().err


def test_what_follows_test_is_for_pytest():
    assert cli.parse(["test", "-k", "plan", "--profile", "x"]).pytest == ["-k", "plan", "--profile", "x"]


def test_known_models_come_from_their_file():
    assert cli_values.known_models() == model_names.MODEL_NAMES


def test_judging_arguments_imports_nothing_heavy():
    program = "import sys; from harp_lib import cli; cli.check(['--models', 'tiny-llama']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = {"torch", "numpy", "transformers", "papermill", "yaml", "tqdm", "snakemake"}
    assert not heavy & set(done.stdout.split())
