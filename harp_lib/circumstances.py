"""In which circumstances a cell is computed: the commit, the machine, versions of packages."""

import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from harp_lib import __version__, config

UNKNOWN = "unknown"  # a circumstance that could not be found out, or that a cell does not record
PACKAGES = ("torch", "transformers", "lm_eval")  # whose versions are recorded


def circumstances() -> dict[str, Any]:
    """What a cell records of the process that computes it."""
    return {
        "device": device_name(),
        "hardware": hardware(),
        "commit": commit(),
        "versions": versions(),
    }


@cache
def versions() -> dict[str, str]:
    """Versions of Python, this library and :data:`PACKAGES`."""
    versions = {"python": platform.python_version(), "harp_lib": __version__}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):  # not every cell needs all of them
            versions[package] = version(package)
    return versions


def device_name() -> str:
    """The accelerator's name, or the processor's architecture."""
    import torch  # here, because a process that only reads cells does not need it

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU ({platform.machine()})"


@cache
def hardware() -> str:
    """The processor's name, its number of cores, and the memory of this machine."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{_processor()}, {psutil.cpu_count()} cores, {memory:.0f} GiB"


def _processor() -> str:
    """The processor's name as the system has it."""
    with suppress(OSError):  # Linux
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(command, capture_output=True, check=False, text=True).stdout.strip()
        if name:
            return name
    return platform.processor() or platform.machine()


@cache
def commit() -> str:
    """The git commit of this checkout; "unknown" without git, "… with changes" if files differ."""
    root = config.ROOT
    git = ["git", "--git-dir", str(root / ".git"), "--work-tree", str(root)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, check=True, text=True
        )
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "harp_lib"], check=False)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    name = head.stdout.strip()
    if changed.returncode:
        name += " with changes"
    return name
