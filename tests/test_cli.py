"""The command line and run_all.sh: what is refused and how, where it may be called from, what sets
up.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from helpers import CHECKOUT

from harp_lib import cli

COMMANDS = re.findall(
    r"^(\./run_all\.sh[^#\n]*)", (CHECKOUT / "README.md").read_text("utf-8"), re.MULTILINE
)


def test_what_is_asked_for():
    options = cli.parse(
        [
            "--profile",
            "smoke",
            "--only",
            "5,03",
            "--models",
            "tiny-llama,owner/name",
            "--limit",
            "9",
        ]
    )
    assert (options.command, options.profile, options.only, options.limit) == (
        "run",
        "smoke",
        ["03", "05"],
        9,
    )
    assert options.models == ["tiny-llama", "owner/name"]
    assert cli.parse(["-p", "seed=1", "-p", "alpha=[0.1, 1]"]).parameters == [
        ("seed", "1"),
        ("alpha", "[0.1, 1]"),
    ]
    assert cli.parse(["test", "-k", "plan", "--only"]).rest == ["-k", "plan", "--only"]
    assert cli.parse(["lab", "--no-browser"]).rest == ["--no-browser"]
    assert cli.parse(["figures", "--profile", "smoke"]).command == "figures"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--profile mnii", "argument --profile: invalid choice: 'mnii' (choose from "),
        ("--prof mini", "unknown argument '--prof'"),
        ("figure", "unknown command 'figure'; choose from run, lab, figures"),
        ("--only 3,42", "unknown notebook '42'; choose from 00, 01, 02"),
        ("--models smollm,", "unknown model 'smollm'; choose from smollm2-135m"),
        ("--models ./nowhere", "unknown model './nowhere'"),
        ("--models .,tiny-llama", "unknown model '.'"),
        (
            "--datasets nowhere",
            "unknown datasets 'nowhere'; choose from embedded, hub, or a folder",
        ),
        ("--limit 0", "a whole number, 1 or more, not '0'"),
        ("--executor lsf", "argument --executor: invalid choice: 'lsf' (choose from "),
        ("-p seed", "malformed parameter 'seed'; write NAME=VALUE, as in seed=1"),
        ("-p models=x", "parameter 'models' has an option of its own: --models"),
        ("figures --force", "--force goes with 'run', not with 'figures'"),
        ("--profile mini test", "'test' goes first; what follows goes to pytest"),
    ],
)
def test_refusals_name_the_value_and_the_way_out(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--check", *shlex.split(arguments)]) == 2
    assert message in capsys.readouterr().err


def test_relative_folders_are_the_callers(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    options = cli.parse(["--models", "./model", "--datasets", "model"])
    assert options.models == [options.datasets] == [str(tmp_path / "model")] * 1


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_front_page_are_accepted(command, tmp_path, monkeypatch):
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").touch()
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--check", *shlex.split(command)[1:]]) in (0, 3)


def run_all(*arguments, script=CHECKOUT / "run_all.sh", **environment):
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")
    }
    environment = clean | {"HARP_PYTHON": sys.executable} | environment
    return subprocess.run([script, *arguments], env=environment, capture_output=True, text=True)


def test_the_script_from_anywhere(tmp_path):
    """By a link, from a folder with a space in it, where modules of the same name lie, with
    standard input closed.
    """
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "link").symlink_to(CHECKOUT / "run_all.sh")
    for module in ("argparse.py", "torch.py", "harp_lib.py"):
        (folder / module).write_text("raise SystemExit(9)")
    closed = ["bash", "-c", "exec ./link setup <&-"]
    done = subprocess.run(
        closed, cwd=folder, env=os.environ | {"HARP_PYTHON": sys.executable}, capture_output=True
    )
    assert (done.returncode, done.stdout.decode().strip()) == (0, f"ready: {sys.executable}")
    assert run_all("--limit", "x").returncode == 2
    assert "usage" in run_all("--help").stdout


FAKE = """#!/bin/sh
# Stands for every interpreter: writes down what set-up asks of it, and passes the rest on.
case "$*" in
*"-m venv"*) echo venv >>"$LOG"; for folder; do :; done
    mkdir -p "$folder/bin"; cp "$0" "$folder/bin/python"; exit 0 ;;
*"config get"*) exit 1 ;;
*"-m pip"*"uv") echo "get uv" >>"$LOG"; exit "${NO_UV:-0}" ;;
*"-m uv pip install"*) echo uv >>"$LOG"; exit "${UV_FAILS:-0}" ;;
*"-m pip"*" -r "*) echo pip >>"$LOG"; exit 0 ;;
*"-m pip"*" -e "*) echo editable >>"$LOG"; exit "${FAILS:-0}" ;;
*--lacks*) echo torch; exit 1 ;;
*_base_executable*) echo "$0"; exit 0 ;;
esac
exec "$REAL" "$@"
"""


@pytest.fixture
def fresh(tmp_path):
    """fresh(**environment): set up a checkout in which nothing is installed; what was asked of
    interpreters.
    """
    root = tmp_path / "check out"
    shutil.copytree(
        CHECKOUT / "harp_lib", root / "harp_lib", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("run_all.sh", "requirements.lock"):
        shutil.copy(CHECKOUT / name, root / name)
    (root / "data").symlink_to(CHECKOUT / "data")
    log, fake = tmp_path / "log", tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text(FAKE)
    fake.chmod(0o755)

    def set_up(**environment):
        log.write_text("")
        path = f"{fake.parent}:{os.environ['PATH']}"
        environment |= {"PATH": path, "LOG": str(log), "REAL": sys.executable, "HARP_PYTHON": ""}
        done = run_all("setup", script=root / "run_all.sh", **environment)
        return done.returncode, log.read_text().split("\n")[:-1]

    return set_up, root


def test_set_up_by_uv_or_pip_once(fresh):
    set_up, root = fresh
    assert set_up(UV_FAILS="1", FAILS="1") == (1, ["venv", "get uv", "uv", "pip", "editable"])
    assert set_up() == (
        0,
        ["venv", "get uv", "uv", "editable"],
    )  # the first one was not finished: anew
    assert set_up() == (0, [])  # the stamp fits
    with (root / "requirements.lock").open("a") as file:
        file.write("# changed\n")
    assert set_up(NO_UV="1") == (0, ["get uv", "pip", "editable"])  # into what is there
    assert set_up() == (0, [])


def test_a_complete_environment_is_left_alone(fresh):
    set_up, root = fresh
    (root / ".venv" / "bin").mkdir(parents=True)
    python = root / ".venv" / "bin" / "python"  # made by hand, and lacks nothing
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    assert set_up() == (0, [])
    assert (root / ".venv" / "harp.stamp").is_file()


def test_interpreters_that_will_not_do_are_refused(fresh, tmp_path):
    done = run_all(
        "setup", HARP_PYTHON=str(tmp_path / "bin" / "python3"), LOG="/dev/null", REAL=sys.executable
    )
    assert (done.returncode, "lacks torch; install requirements.lock there" in done.stderr) == (
        1,
        True,
    )
    done = run_all("setup", HARP_PYTHON=str(tmp_path / "nothing"))
    assert (done.returncode, "no Python 3.11 or newer among" in done.stderr) == (1, True)
    assert cli.missing_packages() == []  # this one will do
