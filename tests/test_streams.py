"""Standard streams that are closed, that nobody reads, or that lack characters."""

import os
import shlex
import subprocess
import sys

import pytest
from helpers import CHECKOUT

PRINTS = """
import os, subprocess, sys
from harp_lib.streams import make_steady

make_steady()
for number in range(9000):  # more than a pipe holds
    print("α", number)
    print("é", number, file=sys.stderr)
sys.stdout.flush()
open_streams = "import os; [os.fstat(descriptor) for descriptor in range(3)]"
subprocess.run([sys.executable, "-c", open_streams], check=True)
"""


def run_with(redirection, code, **variables):
    """Run Python code with a redirection of bash: its exit code, and what bash's stdout has."""
    command = f"{shlex.join([sys.executable, '-c', code])} {redirection}; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), **variables}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "redirection",
    [">&-", "<&- >&- 2>&-", ">/dev/full 2>&1", "2>&1 | true"],
)
def test_what_cannot_be_written_is_dropped(redirection):
    assert run_with(redirection, PRINTS)[0] == 0


def test_a_pipe_that_does_not_block_is_waited_for():
    """As the pipes of some CI, which are full for a while."""
    code = "import os; os.set_blocking(1, False)\n" + PRINTS
    returncode, shown = run_with("2>/dev/null | (sleep 0.5; cat)", code, PYTHONIOENCODING="utf-8")
    assert returncode == 0
    assert shown.decode().splitlines()[-1] == "α 8999"


@pytest.mark.parametrize("encoding", ["ascii:strict", "latin-1"])
def test_characters_that_an_encoding_lacks_are_escaped(encoding):
    child = 'subprocess.run([sys.executable, "-c", "print(chr(945))"], check=True)'
    returncode, shown = run_with("2>/dev/null", f"{PRINTS}{child}", PYTHONIOENCODING=encoding)
    assert returncode == 0
    assert shown.splitlines()[0] == rb"\u03b1 0"
    assert shown.splitlines()[-1] == rb"\u03b1"
