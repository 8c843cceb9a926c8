"""What can go wrong in a run, done on purpose: ``python tests/faults.py [--kills 10] [--seed 0]``.

Scratch checkouts without a stored result run the profile smoke: undisturbed, with processes killed, with results cut
off, with a notebook that raises, on a full disk, twice at once, and interrupted. Whatever happened, the same command
has to come to the same tables, and no finished cell may be computed twice. ``tests/faults.log`` says what was found;
the exit code is 1 if that is anything.
"""

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import nbformat
import psutil
from checkouts import PROCESSES, Checkout, judge, rewritten, title

LOG = Path(__file__).with_suffix(".log")
SOME = ("--only", "01,03,04", "--models", "tiny-llama")  # for faults that need not meet everything
FULL = 2 * 4096  # bytes that hold nothing worth speaking of
NO_MOUNT = 77  # exit code where this machine mounts nothing for us


def kills(work: Checkout, undisturbed: Checkout, number: int, chance: random.Random, say: Callable) -> list[str]:
    """SIGKILL at random moments: of runner, engine, kernels and jobs in turn, alone or with all that it started.

    A moment is a number of finished cells, so that the moments spread over all of the work, and up to eight seconds.
    """
    total, known, faults = len(undisturbed.files()), {}, []
    moments = sorted(chance.randrange(total) for _ in range(number))
    kinds = chance.sample(sorted(PROCESSES), len(PROCESSES)) * number
    running, starts = work.start(), 1
    for moment, kind in zip(moments, kinds, strict=False):
        victims, wait = [], chance.uniform(0, 8)
        while not victims:
            if running.poll() is not None:  # the rest of the run went on after a kill, and has ended
                if (starts := starts + 1) > 3 * number:
                    return [*faults, "it ended time and again before it got that far"]
                running = work.start()
            if len(work.files()) >= moment:
                time.sleep(wait)
                victims, wait = work.processes(PROCESSES[kind]), 0
            time.sleep(0.05)
        process = chance.choice(victims)
        who, alone = title(process), chance.random() < 0.5
        _kill(process, alone)
        if kind == "runner":
            running.wait()
        cells = work.cells()
        say(f"  {len(cells):3d} of {total} cells: killed {who}, {'alone' if alone else 'with what it started'}")
        faults += rewritten(work, known)
        known |= cells
    running.wait()
    known |= work.cells()
    say(f"  {len(known):3d} of {total} cells, exit code {running.returncode}: the same command again")
    return faults + judge(work, undisturbed, work.run()[0], known)


def _kill(process: psutil.Process, alone: bool) -> None:
    with suppress(psutil.NoSuchProcess):
        for child in [] if alone else process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()


def cut_off(work: Checkout, undisturbed: Checkout, chance: random.Random, say: Callable) -> list[str]:
    """Five result files of a finished run lose their second half."""
    known = work.cells()
    for name in chance.sample(sorted(known), 5):
        file = work.results / name
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        del known[name]
        say(f"  cut off {name}")
    code, shown = work.run()
    aside, warned = len(list(work.results.rglob("*.unreadable-*"))), shown.count("could not be read; moved to")
    say(f"  {aside} moved aside, {warned} warnings")
    return judge(work, undisturbed, code, known) + ["one was not named"] * (not aside == warned == 5)


def raising(work: Checkout, undisturbed: Checkout, say: Callable) -> list[str]:
    """Notebook 03 of a finished checkout raises after its parameters; the others are to be done all the same."""
    (link,) = (work.root / "notebooks").glob("03_*.ipynb")
    source, known = link.resolve(), work.cells()
    notebook = nbformat.read(source, as_version=4)
    notebook.cells.insert(4, nbformat.v4.new_code_cell("raise ValueError('on purpose')", id="raises"))
    link.unlink()
    nbformat.write(notebook, link)
    code, shown = work.run()
    rows = [line.split()[:2] for line in shown.splitlines() if line[:3] in ("01_", "02_", "03_", "04_")]
    said = [line for line in shown.splitlines() if "raised ValueError: on purpose" in line]
    say(f"  exit code {code}; {', '.join(' '.join(row) for row in rows)}")
    say(f"  {said[-1] if said else 'no message'}")
    wrong = code != 1 or not said or any((row[1] == "done") == row[0].startswith("03") for row in rows)
    link.unlink()
    link.symlink_to(source)
    return ["it was not said well"] * wrong + judge(work, undisturbed, work.run()[0], known)


def two_at_once(work: Checkout, undisturbed: Checkout, say: Callable) -> list[str]:
    """The same command twice, the second a moment after the first."""
    both = [work.start()]
    time.sleep(3)
    both.append(work.start())
    while all(one.poll() is None for one in both):
        time.sleep(0.05)
    known = work.cells()
    codes = [one.wait() for one in both]
    waited = work.log.read_text().count("another run of this checkout is at work")
    say(f"  exit codes {codes}, {waited} waited; {len(known)} cells when the first was done")
    complete = len(known) == len(undisturbed.files()) and waited == 1
    return judge(work, undisturbed, max(codes), known) + ["the second did not wait"] * (not complete)


def interrupted(work: Checkout, undisturbed: Checkout, chance: random.Random, say: Callable) -> list[str]:
    """Ctrl-C at a random moment of the first half, and the same command again."""
    total = len(undisturbed.files())
    moment = chance.randrange(1, total // 2)
    running = work.start()
    while len(work.files()) < moment and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    begin, code, shown = time.monotonic(), running.wait(), work.log.read_text()
    known, alive = work.cells(), work.processes()
    seconds = time.monotonic() - begin
    say(f"  {len(known):3d} of {total} cells: exit code {code} after {seconds:.1f} s, {len(alive)} processes left")
    told = re.search(r"^\S+ +interrupted ", shown, re.MULTILINE) and "the same command continues" in shown
    wrong = code != 130 or alive or not told
    return ["it did not end well"] * bool(wrong) + judge(work, undisturbed, work.run()[0], known)


def full_disk(root: Path, undisturbed: Checkout, say: Callable) -> list[str] | None:
    """A full disk, one that holds half of what the run writes, one that holds it all; None if none can be had."""
    size = sum(file.stat().st_size // 4096 + 1 for file in undisturbed.root.rglob("*") if file.is_file()) // 2 * 4096
    step = [sys.executable, __file__, "--inside", str(size), str(root), str(undisturbed.root)]
    try:
        done = subprocess.run(["unshare", "-rm", *step, *undisturbed.options], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    if done.returncode == NO_MOUNT or "unshare failed" in done.stderr:
        return None
    found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"said": [], "faults": [done.stderr]}
    for line in found["said"]:
        say(line)
    return found["faults"]


def inside(size: str, root: str, undisturbed: str, *options: str) -> int:
    """The part of :func:`full_disk` that has a namespace of its own, where anybody may mount."""
    Path(root).mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={FULL}", "tmpfs", root]).returncode:
        return NO_MOUNT
    work, said, faults = Checkout(Path(root), options), [], []
    for space in (FULL, int(size)):
        subprocess.run(["mount", "-o", f"remount,size={space}", root], check=True)
        code, shown = work.run()
        named = [line for line in shown.splitlines() if "no space left on the disk of" in line]
        said.append(
            f"  {space // 1024} KiB: exit code {code}; {named[-1].replace(root, '.') if named else 'no message'}"
        )
        faults += ["it was not said well"] * (code != 1 or not named)
    known = work.cells()
    unreadable = [name for name in known if not _is_json(work.results / name)]
    said.append(f"  {len(known)} cells, {len(unreadable)} of them half written")
    faults += [f"half written: {name}" for name in unreadable]
    subprocess.run(["mount", "-o", f"remount,size={4 * int(size)}", root], check=True)
    faults += judge(work, Checkout(Path(undisturbed)), work.run()[0], known)
    print(json.dumps({"said": said, "faults": faults}))
    return 0


def _is_json(file: Path) -> bool:
    try:
        return bool(json.loads(file.read_text(encoding="utf-8")))
    except ValueError:
        return False


def main() -> int:
    """Everything that can go wrong, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background commands ignore
    chance, begin = random.Random(options.seed), time.monotonic()
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(f"{line}\n")

    with tempfile.TemporaryDirectory() as scratch:

        def new(name: str, some: Sequence[str] = SOME) -> Checkout:
            return Checkout(Path(scratch) / name, some)

        whole, few, killed = new("whole", ()), new("few"), new("killed", ())
        codes = [whole.run()[0], few.run()[0]]
        counts = [len(work.files()) for work in (whole, few)]
        say(f"python tests/faults.py --kills {options.kills} --seed {options.seed}")
        say(f"undisturbed, smoke: exit code {codes[0]}, {counts[0]} cells; {' '.join(SOME)}: {codes[1]}, {counts[1]}")
        faults = {
            f"SIGKILL {options.kills} times, smoke": lambda: kills(killed, whole, options.kills, chance, say),
            "result files cut off": lambda: cut_off(killed, whole, chance, say),
            "a notebook that raises": lambda: raising(few, few, say),
            "a full disk": lambda: full_disk(Path(scratch) / "disk", few, say),
            "two runs at once": lambda: two_at_once(new("two"), few, say),
            "Ctrl-C": lambda: interrupted(new("interrupted"), few, chance, say),
        }
        found = {}
        for name, happens in faults.items():
            say(f"{name}")
            found[name] = happens()
            say("  not tried: no disk can be mounted here" if found[name] is None else _sentence(found[name]))
    say(f"{time.monotonic() - begin:.0f} seconds in all")
    LOG.write_text("".join(lines), encoding="utf-8")
    return int(any(codes) or any(found.values()))


def _sentence(faults: list[str]) -> str:
    return (
        "".join(f"  FAULT: {fault}\n" for fault in faults).rstrip() or "  same tables, no finished cell computed again"
    )


if __name__ == "__main__":
    sys.exit(inside(*sys.argv[2:]) if sys.argv[1:2] == ["--inside"] else main())
