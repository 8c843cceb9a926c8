"""What a terminal shows of a kernel's or a job's text, and what a log keeps of it."""

import io

from harp_lib.console import KernelText


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown_by(stream: io.StringIO, pieces: list[str], seconds: float) -> str:
    now = [0.0]
    text = KernelText(stream, clock=lambda: now[0])
    for piece in pieces:
        now[0] += seconds
        text.write(piece)
        text.flush()
    text.close()
    return stream.getvalue()


BAR = ["hello\n", *(f"\r{i * 25:3d}%|#| {i}/4 [00:0{i}<?]" for i in range(5)), "\n", "wor", "ld"]


def test_a_terminal_gets_the_text_as_it_is():
    assert shown_by(Terminal(), BAR, seconds=1) == "".join(BAR) + "\n"


def test_a_log_gets_finished_lines_and_a_bar_now_and_then():
    assert shown_by(io.StringIO(), BAR, seconds=1) == "hello\n100%|#| 4/4 [00:04<?]\nworld\n"
    assert shown_by(io.StringIO(), BAR, seconds=12).splitlines() == [
        "hello",
        " 25%|#| 1/4 [00:01<?]",
        "100%|#| 4/4 [00:04<?]",
        "world",
    ]


def test_a_log_shows_nothing_of_a_bar_that_was_wiped():
    pieces = ["\r 50%|#| 1/2", "\r           \r", "done\n", "\r 50%|#| 1/2", "\r           \r"]
    assert shown_by(io.StringIO(), pieces, seconds=1) == "done\n"


def test_a_log_gets_nested_bars_now_and_then():
    outer = "\r 10%|#| 1/10"
    inner = [piece for i in range(100) for piece in ("\n", f"\r{i:3d}%|#| {i}/100", "\x1b[A")]
    assert len(shown_by(io.StringIO(), [outer, *inner], seconds=1).splitlines()) <= 11


def test_a_log_keeps_what_is_printed_behind_a_bar():
    pieces = ["\r 50%|#| 1/2 [00:01<?]", "3 cells computed\n", "\r 75%|#| 3/4 [00:01<?]\n", "done\n"]
    assert shown_by(io.StringIO(), pieces, seconds=1).splitlines() == [" 50%|#| 1/2 [00:01<?]3 cells computed", "done"]
