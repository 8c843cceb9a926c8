"""Set-up: what satisfies the lock, and that lock, pyproject.toml and environment.yml keep in step."""

import json
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from harp_lib import environment

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = environment.read_lock(ROOT / "requirements.lock")


def test_reads_a_lock(tmp_path):
    lock = tmp_path / "requirements.lock"
    lock.write_text("# made by hand==1\nPyYAML==6.0.3\nlm_eval==0.4.13  # why\nzope.interface==5\n", encoding="utf-8")
    assert environment.read_lock(lock) == {"pyyaml": "6.0.3", "lm-eval": "0.4.13", "zope-interface": "5"}


@pytest.mark.parametrize(
    ("installed", "missing", "different"),
    [
        ({"numpy": "2.4.6", "torch": "2.13.0", "other": "1"}, [], []),
        ({"numpy": "2.4.6", "torch": "2.13.0+cpu"}, [], []),
        ({"torch": "2.13.0+cu130"}, ["numpy"], []),
        ({"numpy": "2.4.5", "torch": "2.13.0"}, [], ["numpy 2.4.5 (pinned: 2.4.6)"]),
        ({"numpy": "2.4.60", "torch": "2.13"}, [], ["numpy 2.4.60 (pinned: 2.4.6)", "torch 2.13 (pinned: 2.13.0)"]),
        ({}, ["numpy", "torch"], []),
    ],
)
def test_compares_with_the_lock(installed, missing, different):
    assert environment.compare({"torch": "2.13.0", "numpy": "2.4.6"}, installed) == (missing, different)


def fake_python(folder: Path, **state) -> Path:
    """An interpreter that answers, whatever it is asked, that it is in this state."""
    complete = {"missing": [], "different": [], "broken": [], "has_pip": True, "has_checkout": True}
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho '{json.dumps(complete | state)}'\n", encoding="utf-8")
    python.chmod(0o755)
    return python


def test_an_activated_environment_that_satisfies_the_lock_is_used(tmp_path):
    python = fake_python(tmp_path / "active", has_checkout=False)
    assert environment.set_up(tmp_path, {"VIRTUAL_ENV": str(tmp_path / "active")}) == python
    assert environment.set_up(tmp_path, {"CONDA_PREFIX": str(tmp_path / "active")}) == python


def test_an_activated_environment_that_does_not_gives_way_to_the_checkouts_own(tmp_path):
    fake_python(tmp_path / "active", missing=["torch"])
    own = fake_python(tmp_path / ".venv")
    assert environment.set_up(tmp_path, {"VIRTUAL_ENV": str(tmp_path / "active")}) == own


def test_a_named_python_is_used_as_it_is(tmp_path, capsys):
    python = fake_python(tmp_path / "mine", has_checkout=False)
    assert environment.set_up(tmp_path, {"HARP_PYTHON": str(python)}) == python
    assert capsys.readouterr().err == ""


def test_a_named_python_in_other_versions_is_used_with_a_warning(tmp_path, capsys):
    python = fake_python(tmp_path / "mine", different=["numpy 2.4.5 (pinned: 2.4.6)"])
    assert environment.set_up(tmp_path, {"HARP_PYTHON": str(python)}) == python
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1
    assert "numpy 2.4.5" in warning


def test_a_named_python_that_lacks_packages_is_refused(tmp_path):
    python = fake_python(tmp_path / "mine", missing=["lm-eval", "torch"])
    with pytest.raises(environment.SetUpError, match="lacks lm-eval, torch;"):
        environment.set_up(tmp_path, {"HARP_PYTHON": str(python)})
    with pytest.raises(environment.SetUpError, match="not a Python"):
        environment.set_up(tmp_path, {"HARP_PYTHON": str(tmp_path / "nowhere")})


def make_checkout(folder: Path) -> Path:
    """A checkout that pins nothing but pip, which a new environment has: nothing is downloaded."""
    (folder / "harp_lib").mkdir(parents=True)
    (folder / "harp_lib" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "requirements.lock").write_text("# nothing\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("wreck", ["no python", "gone python", "no pip"])
def test_a_wrecked_environment_is_made_anew(tmp_path, monkeypatch, capsys, wreck):
    root = make_checkout(tmp_path / "a checkout")
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    if wreck == "gone python":
        python.symlink_to(tmp_path / "gone" / "python3")
    if wreck == "no pip":
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / ".venv"], check=True)
    installed = []
    monkeypatch.setattr(environment, "_pip", lambda python, *arguments: installed.append(arguments))
    with pytest.raises(environment.SetUpError, match="pip ended well"):  # as our pip did nothing, harp_lib is not there
        environment.set_up(root, {})
    assert "making it anew" in capsys.readouterr().err
    assert installed == [("--no-deps", "--no-build-isolation", "-e", str(root))]
    state = environment.state_of(python, root)
    assert state.has_pip
    assert state.satisfies_lock


def test_a_distribution_unpacked_in_part_is_seen(tmp_path):
    for name, files in {"whole": ("METADATA", "RECORD"), "half": ("METADATA",)}.items():
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        for file in files:
            (info / file).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (tmp_path / "requirements.lock").write_text("whole==1.0\nhalf==1.0\n", encoding="utf-8")
    command = [sys.executable, "-P", environment.__file__, "--state", tmp_path]
    answer = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    state = environment.State(**json.loads(answer.stdout))
    assert (state.missing, state.broken, state.satisfies_lock) == ([], ["half"], False)


def test_two_set_ups_do_not_meet(tmp_path):
    lock = tmp_path / "requirements.lock"
    lock.touch()
    program = (
        "import sys; from pathlib import Path; from harp_lib import environment\n"
        "with environment._one_at_a_time(Path(sys.argv[1])): print('in', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    with (
        subprocess.Popen([sys.executable, "-c", program, lock], **pipes) as first,
        subprocess.Popen([sys.executable, "-c", "input();" + program, lock], **pipes) as second,
    ):
        assert first.stdout.readline() == "in\n"
        second.stdin.write("\n")
        second.stdin.close()
        assert "waiting for it" in second.stderr.readline()
        assert second.poll() is None
        first.stdin.close()
        assert second.stdout.readline() == "in\n"


def test_the_lock_pins_what_the_project_needs():
    for text in chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        requirement = Requirement(text)
        pin = LOCK.get(environment.canonical(requirement.name))
        assert pin is not None, f"{text} is not in requirements.lock"
        assert requirement.specifier.contains(pin), f"requirements.lock pins {requirement.name}=={pin}, not {text}"


def test_the_lock_is_plain_pins_in_order():
    comment, *lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert comment.startswith("#")
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", line) for line in lines)  # no +cpu, no path
    assert lines == sorted(lines, key=str.lower)
    assert not [line for line in lines if line.startswith("nvidia")]


def test_the_conda_environment_is_the_same():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    python = next(item for item in conda if isinstance(item, str) and item.startswith("python="))
    assert Version(python.removeprefix("python=")) in SpecifierSet(PROJECT["requires-python"])
    assert "pip" in conda
    assert conda[-1] == {"pip": ["-r requirements.lock", "-e ."]}
