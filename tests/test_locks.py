"""Locks on file systems that have them, and on those that have none."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest
from filelock import Timeout

from harp_lib import config, locks
from harp_lib.results import Cell, Store

WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
KILLED_WITH_A_LOCK = """
import errno, fcntl, os, sys
from pathlib import Path
from harp_lib import locks

def flock(*arguments):
    raise OSError(errno.ENOLCK, "no locks")

fcntl.flock = flock
held = locks.take(Path(sys.argv[1]))
os._exit(0)
"""


@pytest.fixture(params=[None, *WITHOUT_LOCKS])
def answer(request, monkeypatch):
    """What the file system answers: None if it has locks, else the number of its error."""

    def flock(descriptor, operation):
        raise OSError(request.param, os.strerror(request.param))

    if request.param:
        monkeypatch.setattr(fcntl, "flock", flock)
    return request.param


def test_a_lock_is_held_once_at_a_time(answer, tmp_path):
    file = tmp_path / ".run.lock"
    file.touch()  # as of a run on another file system
    with locks.take(file), pytest.raises(Timeout):
        locks.take(file, timeout=0)
    with locks.take(file, timeout=0):
        pass
    left = [entry.name for entry in tmp_path.iterdir()]
    assert left == ([] if answer else [".run.lock"])


def test_a_cell_is_computed_once_and_leaves_no_lock(answer, tmp_path, monkeypatch):
    monkeypatch.setattr(config, "RESULTS", tmp_path)
    cell = Cell({"what": "score"}, lambda: {"rows": []})
    for _ in range(2):
        store = Store()
        store.get(cell)
    assert store.counts == {"read": 1}
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [store.file(cell.digest)]


def test_a_lock_of_a_killed_process_is_taken_over(tmp_path, monkeypatch):
    file = tmp_path / ".run.lock"
    subprocess.run([sys.executable, "-c", KILLED_WITH_A_LOCK, file], check=True)
    assert [entry.name for entry in tmp_path.iterdir()] == [".run.lock.soft"]

    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    locks.take(file, timeout=5).lock.release()


def test_another_error_is_raised(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises((NotADirectoryError, FileExistsError)):
        locks.take(tmp_path / "file" / ".run.lock", timeout=0)
