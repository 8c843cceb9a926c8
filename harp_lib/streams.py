"""Standard streams that end no run: closed ones, unread ones, and those of few characters."""

import io
import os
import sys
from typing import TextIO


class _MayBeUnread(io.FileIO):
    """A file that drops what cannot be written, as when the reader of a pipe has gone."""

    def write(self, data: bytes) -> int | None:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def make_steady() -> None:
    """Let this process and those that it starts go on, whatever becomes of what they print.

    A closed stream becomes the null device. Characters that an encoding lacks are escaped.
    """
    for descriptor in range(3):
        try:
            os.set_blocking(descriptor, True)  # in some CI a full pipe raises BlockingIOError
        except OSError:  # the null device takes the lowest free number, which is this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = _steady(sys.stdout, 1)
    sys.stderr = _steady(sys.stderr, 2)
    os.environ["PYTHONIOENCODING"] = f"{sys.stdout.encoding}:{sys.stdout.errors}"


def _steady(stream: TextIO | None, descriptor: int) -> TextIO:
    return io.TextIOWrapper(
        io.BufferedWriter(_MayBeUnread(descriptor, "w", closefd=False)),
        encoding=stream.encoding if stream else "utf-8",
        errors="backslashreplace",
        line_buffering=os.isatty(descriptor) or descriptor == 2,
    )
