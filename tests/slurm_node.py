"""A Slurm of one node on this machine, for as long as it is needed: ``with slurm_node(...):``.

The node claims more cores, memory and GPUs than there are, so that jobs written for a cluster fit on it.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("sbatch", "srun", "squeue", "scancel", "sinfo", "slurmctld", "slurmd", "munged", "runuser")
ETC = Path("/etc/slurm")  # SLURM_CONF would not reach the jobs
MADE = "# made by tests/slurm_node.py, which removes it\n"
MUNGE = Path("/run/munge")

CONF = """\
ClusterName=smoke
SlurmctldHost={host}
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
KillWait=5
NodeName={host} CPUs={cpus} RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN
"""


def answers() -> bool:
    """Whether there is a Slurm with a node that takes jobs."""
    try:
        found = subprocess.run(["sinfo", "-h", "-o", "%t"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return any(state in found.stdout.split() for state in ("idle", "mix", "alloc"))


def why_not() -> str:
    """Why no Slurm can be set up here; empty if one can."""
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "only root can set up a Slurm"
    conf = ETC / "slurm.conf"
    if conf.is_file() and not conf.read_text(encoding="utf-8").startswith(MADE):
        return "a Slurm is set up here, but does not answer"
    return ""


@contextmanager
def slurm_node(partitions: Sequence[str], cpus: int, memory: int, gpus: int) -> Iterator[None]:
    """Set up a Slurm and take it down again.

    Parameters
    ----------
    partitions : sequence of str
    cpus, memory, gpus : int
        That the node claims to have; memory in MB.

    Raises
    ------
    RuntimeError
        If it does not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    lines = [f"PartitionName={name} Nodes={host} MaxTime=INFINITE State=UP\n" for name in partitions]
    conf = CONF.format(host=host, folder=folder, cpus=cpus, memory=memory, gpus=gpus)
    (ETC / "slurm.conf").write_text(MADE + conf + "".join(lines), encoding="utf-8")
    devices = [folder / f"gpu{number}" for number in range(gpus)]  # a GPU needs a file, and nobody opens it
    for device in devices:
        device.touch()
    gres = "".join(f"Name=gpu File={device}\n" for device in devices)
    (ETC / "gres.conf").write_text(MADE + gres, encoding="utf-8")
    pids = [folder / "slurmd.pid", folder / "slurmctld.pid"]
    try:
        if not (MUNGE / "munge.socket.2").exists():
            subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", str(MUNGE)], check=True)
            subprocess.run(["runuser", "-u", "munge", "--", "munged"], check=True)
            pids.append(MUNGE / "munged.pid")
        subprocess.run(["slurmctld"], check=True)
        subprocess.run(["slurmd"], check=True)
        if not _within(60, answers):
            logs = "".join((folder / f"{name}.log").read_text()[-2000:] for name in ("slurmctld", "slurmd"))
            raise RuntimeError(f"Slurm did not start:\n{logs}")
        yield
    finally:
        for pid in pids:
            _end(pid)
        for name in ("slurm.conf", "gres.conf"):
            (ETC / name).unlink()
        shutil.rmtree(folder)


def _within(seconds: float, holds) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


def _end(pid: Path) -> None:
    """End a daemon that wrote its pid to a file."""
    if pid.is_file():
        number = int(pid.read_text())
        os.kill(number, 15)
        _within(20, lambda: not Path(f"/proc/{number}").exists())
