"""Shows what a kernel or a job prints, progress bars among it, on a terminal or in a log."""

import re
import time
from collections.abc import Callable
from typing import TextIO

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BAR_UNDER_WAY = re.compile(r"^(?!.*100%\||.*\d%\|.*\]\S).*\d%\|")  # tqdm: "desc:  40%|████      | 4/10 …]", alone


class KernelText:
    """A file to write a kernel's stdout and stderr to.

    On a terminal the text passes unchanged, so that bars move in place. Anywhere else only finished lines are
    shown, and of bars under way one state in ``interval`` seconds.
    """

    encoding = "utf-8"  # by which tqdm knows that it may draw blocks

    def __init__(self, stream: TextIO, interval: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._interval = interval
        self._clock = clock
        self._last_bar = clock()
        self._pending = ""

    def write(self, text: str) -> None:
        """Take a piece of text as the kernel sent it."""
        *finished, self._pending = _ESCAPE.sub("", self._pending + text).split("\n")
        if "\r" in self._pending:  # of a bar, only the last state is of use
            self._pending = f"\r{_visible(self._pending)}" + "\r" * self._pending.endswith("\r")
        if self._live:
            self._stream.write(text)
            return
        for line in map(_visible, finished):
            if _BAR_UNDER_WAY.search(line):
                self._bar(line)
            elif line:
                self._stream.write(f"{line}\n")
        if "\r" in self._pending:
            self._bar(_visible(self._pending))

    def flush(self) -> None:
        """Flush the stream; papermill calls this after each piece."""
        self._stream.flush()

    def close(self) -> None:
        """Show an unfinished last line, and leave the cursor at the start of the next."""
        rest = _visible(self._pending)
        if rest:
            self._stream.write("\n" if self._live else f"{rest}\n")
        self._stream.flush()
        self._pending = ""

    def _bar(self, shown: str) -> None:
        if shown and "100%|" not in shown and self._clock() - self._last_bar >= self._interval:
            self._stream.write(f"{shown}\n")
            self._last_bar = self._clock()


def _visible(line: str) -> str:
    """What a terminal would show of a line: the last of the texts that overwrote each other."""
    return next((part.rstrip() for part in reversed(line.split("\r")) if part), "")
