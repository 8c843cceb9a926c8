"""The command line and run_all.sh: what they refuse, where they may be called from, and set-up."""

import getpass
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from helpers import CHECKOUT

from harp_lib import cli, config

PAGES = [CHECKOUT / "README.md", *(CHECKOUT / "docs").glob("*.md")]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
COMMANDS = re.findall(r"^(\./run_all\.sh[^#\n]*)", TEXT, re.MULTILINE)


def test_options_of_run_are_read():
    text = "--profile smoke --only 5,03 --models tiny-llama,owner/name --limit 9 --seed 0"
    options = cli.parse(text.split())
    assert options.command == "run"
    assert options.profile == "smoke"
    assert options.only == ["03", "05"]
    assert options.models == ["tiny-llama", "owner/name"]
    assert options.limit == 9
    assert options.seed == 0
    assert cli.parse([]).command == "run"
    assert cli.parse(["run"]).profile == "mini"


def test_other_commands_are_read():
    assert cli.parse(["test", "-k", "plan", "--only"]).rest == ["-k", "plan", "--only"]
    assert cli.parse(["lab", "--no-browser"]).rest == ["--no-browser"]
    assert cli.parse(["figures", "--profile", "smoke"]).profile == "smoke"
    assert cli.parse(["book"]).profile == "small"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--profile mnii", "argument --profile: invalid choice: 'mnii' (choose from "),
        ("--prof mini", "'run' takes no '--prof'; a command goes first, and --help shows"),
        ("figure", "argument COMMAND: invalid choice: 'figure' (choose from "),
        ("--only 3,42", "unknown notebook '42'; choose from 00, 01, 02"),
        ("--models smollm,", "(did you mean 'smollm2-135m'?); choose from smollm2-135m"),
        ("--models .,tiny-llama", "unknown model '.'"),
        (
            "--datasets nowhere",
            "unknown datasets 'nowhere'; choose from embedded, hub, or a folder",
        ),
        ("--limit 0", "a whole number, 1 or more, not '0'"),
        ("--seed soon", "a whole number, 0 or more, not 'soon'"),
        ("figures --force", "'figures' takes no '--force'"),
        ("--profile mini test", "'run' takes no 'test'; a command goes first"),
    ],
)
def test_refusals_name_the_value_and_the_way_out(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--check", *shlex.split(arguments)]) == 2
    assert message in capsys.readouterr().err


def test_figures_of_a_profile_without_results_say_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match="nothing is stored for the profile paper"):
        cli.main(["figures", "--profile", "paper"])


def test_relative_folders_are_those_of_the_caller(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    options = cli.parse(["--models", "./model", "--datasets", "model"])
    assert options.models == [str(tmp_path / "model")]
    assert options.datasets == str(tmp_path / "model")


def test_what_the_shell_sets_for_other_programs_is_dropped(tmp_path, monkeypatch):
    own = {"PYTHONPATH": str(CHECKOUT), "PYTHONUTF8": "1", "OMP_NUM_THREADS": "3"}
    theirs = {"PYTHONPATH": f"{tmp_path}:{CHECKOUT}", "PYTHONUTF8": "0", "OMP_NUM_THREADS": "3"}
    dropped = ("PYTHONHOME", "MPLBACKEND", "MATPLOTLIBRC", "IPYTHONDIR", "PANDAS_COPY_ON_WRITE")
    theirs |= dict.fromkeys(dropped, "x")
    for variables in (own, theirs):
        variables["PYTHONIOENCODING"] = "ascii"  # that of the terminal
    monkeypatch.setattr(os, "environ", theirs)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(CHECKOUT), *sys.path])
    cli.set_environment()
    assert os.environ == own
    assert str(tmp_path) not in sys.path
    assert str(CHECKOUT) in sys.path


def test_commands_of_the_pages_are_accepted(tmp_path, monkeypatch):
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").touch()
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.chdir(tmp_path)
    assert len(COMMANDS) > 10
    for command in COMMANDS:
        assert cli.main(["--check", *shlex.split(command)[1:]]) in (0, 3), command


def test_a_user_without_a_name_gets_one_and_a_home(tmp_path, monkeypatch):
    """As in containers that run under a number."""

    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(config, "RESULTS", tmp_path)
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME"):
        monkeypatch.setenv(variable, "")  # so that it is restored afterwards
        monkeypatch.delenv(variable)
    assert cli.main(["setup"]) == 0
    assert getpass.getuser() == str(os.getuid())
    assert Path.home() == tmp_path / ".home"
    monkeypatch.setenv("HOME", str(tmp_path / "missing"))
    assert cli.main(["setup"]) == 0
    assert Path.home() == tmp_path / "missing", "a home stays"


def test_a_locale_of_few_characters(tmp_path):
    """Files are UTF-8 in it, too, and their names."""
    folder = tmp_path / "é"
    folder.mkdir()
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {**os.environ, **variables, "PYTHONPATH": str(CHECKOUT)}
    environment.pop("PYTHONIOENCODING", None)  # which would decide
    done = subprocess.run(
        [sys.executable, "-P", "-m", "harp_lib.cli", "--datasets", str(folder / "β")],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert r"/\xe9/\u03b2'; choose from" in done.stderr


def run_all(*arguments, script=CHECKOUT / "run_all.sh", closed=None, **variables):
    """Call run_all.sh with some environment variables, and no activated environment."""
    environment = {**os.environ, "HARP_PYTHON": sys.executable, **variables}
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        environment.pop(name, None)
    return subprocess.run(
        [script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=None if closed is None else partial(os.close, closed),
    )


def test_a_colon_in_the_name_of_the_folder_is_refused(tmp_path):
    folder = tmp_path / "a:b"
    folder.mkdir()
    shutil.copy(CHECKOUT / "run_all.sh", folder)
    done = run_all("--help", script=folder / "run_all.sh")
    assert done.returncode == 1
    assert "because of the colon: rename the folder" in done.stderr


def test_the_script_can_be_called_from_anywhere(tmp_path):
    """By a link, from a folder that has a space in its name and modules of ours, without stdin."""
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "link").symlink_to(CHECKOUT / "run_all.sh")
    for module in ("argparse.py", "torch.py", "harp_lib.py"):
        (folder / module).write_text("raise SystemExit(9)")
    done = subprocess.run(
        ["bash", "-c", "exec ./link setup <&-"],
        cwd=folder,
        env={**os.environ, "HARP_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stdout.strip() == f"ready: {sys.executable}"
    assert run_all("--limit", "x").returncode == 2
    shown = run_all("--help").stdout
    assert "--only 03,05" in shown
    assert "JupyterLab" in shown


FAKE = """#!/bin/sh
# Stands for every interpreter: it logs what set-up asks it to install, and passes the rest on.
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
    """A checkout in which nothing is installed, and a function that sets it up.

    ``set_up(**variables)`` returns the exit code and what the interpreters were asked to install.
    """
    root = tmp_path / "check out"
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "harp_lib", root / "harp_lib", ignore=without_caches)
    for name in ("run_all.sh", "requirements.lock"):
        shutil.copy(CHECKOUT / name, root / name)
    (root / "data").symlink_to(CHECKOUT / "data")
    log = tmp_path / "log"
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text(FAKE)
    fake.chmod(0o755)

    def set_up(**variables):
        log.write_text("")
        done = run_all(
            "setup",
            script=root / "run_all.sh",
            PATH=f"{fake.parent}:{os.environ['PATH']}",
            LOG=str(log),
            REAL=sys.executable,
            HARP_PYTHON="",
            **variables,
        )
        return done.returncode, log.read_text().splitlines()

    return set_up, root


def test_set_up_by_uv_or_pip_once(fresh):
    set_up, root = fresh
    assert set_up(UV_FAILS="1", FAILS="1") == (1, ["venv", "get uv", "uv", "pip", "editable"])
    # The first set-up was not finished, so the second one begins anew, without an open stdout.
    assert set_up(closed=1) == (0, ["venv", "get uv", "uv", "editable"])
    assert set_up() == (0, []), "the stamp fits"
    with (root / "requirements.lock").open("a") as file:
        file.write("# changed\n")
    assert set_up(NO_UV="1") == (0, ["get uv", "pip", "editable"]), "into the .venv that is there"
    assert set_up() == (0, [])


def test_a_complete_environment_is_left_alone(fresh):
    set_up, root = fresh
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')  # it lacks nothing
    python.chmod(0o755)
    assert set_up() == (0, [])
    assert (root / ".venv" / "harp.stamp").is_file()


def test_interpreters_that_will_not_do_are_refused(fresh, tmp_path):
    fake = str(tmp_path / "bin" / "python3")
    done = run_all("setup", HARP_PYTHON=fake, LOG="/dev/null", REAL=sys.executable)
    assert done.returncode == 1
    assert "lacks torch; install requirements.lock there" in done.stderr
    done = run_all("setup", HARP_PYTHON=str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert "no Python 3.11 or newer among" in done.stderr


def test_this_interpreter_lacks_nothing():
    assert cli.missing_packages() == []
