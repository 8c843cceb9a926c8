"""Locks between processes."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from harp_lib.locks import exclusive

HOLD = """
import sys, time
from pathlib import Path
from harp_lib.locks import exclusive
with exclusive(Path(sys.argv[1]), "waiting"):
    print("mine", flush=True)
    time.sleep(float(sys.argv[2]))
"""
ADD = """
import sys
from pathlib import Path
from harp_lib.locks import exclusive
lock, number = map(Path, sys.argv[1:])
for _ in range(50):
    with exclusive(lock):
        number.write_text(str(int(number.read_text()) + 1))
"""


def start(program: str, *arguments: object) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def test_one_at_a_time_though_each_removes_the_file(tmp_path):
    (tmp_path / "number").write_text("0")
    processes = [start(ADD, tmp_path / "lock", tmp_path / "number") for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert (tmp_path / "number").read_text() == "200"
    assert not (tmp_path / "lock").exists()


def test_who_waits_says_so_and_a_dead_process_lets_go(tmp_path, capsys):
    lock = tmp_path / "new folder" / "lock"
    holder = start(HOLD, lock, 60)
    assert holder.stdout.readline() == "mine\n", "nobody to wait for"
    waiter = start(HOLD, lock, 0)
    assert waiter.stdout.readline() == "waiting\n"
    time.sleep(0.2)
    assert waiter.poll() is None
    holder.kill()
    holder.wait()
    assert waiter.stdout.readline() == "mine\n"
    assert waiter.wait(60) == 0
    with exclusive(lock, "waiting"):
        pass
    assert capsys.readouterr().out == ""


def test_it_is_let_go_when_what_it_guards_fails(tmp_path):
    lock: Path = tmp_path / "lock"
    with pytest.raises(RuntimeError, match="broken"), exclusive(lock):
        raise RuntimeError("broken")
    assert not lock.exists()
    with exclusive(lock):
        assert lock.exists()
