"""Locks between processes: one run of a checkout at a time, and one process at a time on each cell."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def exclusive(path: Path, waiting: str = "") -> Iterator[None]:
    """Hold the lock on a file; a process that dies lets go of it.

    Parameters
    ----------
    path : Path
        The lock file, which is removed afterwards: who waited on a removed one tries again.
    waiting : str
        Shown if somebody else holds the lock, which is then waited for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if waiting:
            print(waiting, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
        lock.release()
