# The rules behind run_all.sh. harp_lib/batch.py starts Snakemake in data/results/<profile>, and the
# settings of the run, .run.json, are Snakemake's configuration.
#
#     search ──▶ plans ──▶ scores, longbench ──▶ notebook ──▶ last (00_start_here)
#           ├──▶ layers ─▶ ablations ────────────▶
#           └──▶ efficiency, frontier ───────────▶
#
# The output of a job is a flag, which says what the job made and how long it took. Results are cells
# of the result store: a job that runs again reads the cells that it finished before. Where one job
# runs at a time, notebooks compute their own cells.
import hashlib
import shutil
import sys
from pathlib import Path

import harp_lib
from harp_lib.config import CONFIGS, DATA, PAPER, slug
from harp_lib.gpus import gpus_of
from harp_lib.notebooks import code_of, read
from harp_lib.results import digest
from harp_lib.units import NOTEBOOKS, UNITS

PYTHON = sys.executable  # whose name may have any characters; quoted in `job`


def library_digest():
    """A digest of what an executed notebook depends on beside its own code and the results."""
    code = Path(harp_lib.__file__).parent.rglob("*.py")
    data = [file for folder in (DATA, CONFIGS, PAPER) for file in folder.glob("*.*")]
    files = sorted([*code, *data])
    contents = b"".join(file.read_bytes() for file in files)
    return hashlib.sha256(contents).hexdigest()[:8]


def job(what):
    """The shell command of a job.

    Jobs that run side by side print to logs beside their flags, and here only that they are done.
    """
    run = f"{{output:q}} {config['began']} {{resources.gpu}}"
    command = f"{{PYTHON:q}} -P -m harp_lib.jobs {run} {what}"
    if config["one_at_a_time"]:
        return command
    # The inner shell ends if nobody reads that the job is done, and the job is done all the same.
    return f"{command} >{{output:q}}.log 2>&1 && ( (echo done: {what}) || true)"


def flags(unit, model):
    """The flags of a unit for one model, which is given by its slug: one for each group of tasks."""
    parts = config["parts"].get(unit, 1)
    return [f".flags/cells/{model}/{unit}-{part}of{parts}.done" for part in range(1, parts + 1)]


def slugs_of(unit):
    """The models that a unit is computed for, as in file names."""
    return [slug(model) for model in config["models"][unit]]


def needs(wildcards):
    """What the same model has to have before a unit."""
    units = list(UNITS[wildcards.unit].needs)
    # Notebooks 05 and 06 share scores; if both run, 05 computes them.
    if wildcards.unit == "ablations" and any(name[:2] == "05" for name in config["notebooks"]):
        units.append("scores")
    needed = []
    for unit in units:
        if wildcards.model in slugs_of(unit):
            needed.extend(flags(unit, wildcards.model))
    return needed


def shown(wildcards):
    """The cells that a notebook shows. What 08 times, it computes itself, alone."""
    if config["one_at_a_time"]:
        return []
    units = NOTEBOOKS.get(wildcards.notebook[:2], ())
    if "efficiency" in units:
        units = UNITS["efficiency"].needs
    cells = []
    for unit in units:
        for model in slugs_of(unit):
            cells.extend(flags(unit, model))
    return cells


def executed(without=None):
    """The flags of all notebooks of this run, but for one that is given by its number."""
    return [f".flags/notebooks/{name}.done" for name in config["notebooks"] if name[:2] != without]


LIBRARY = library_digest()

# The executor asks sacct for an account if none is given, and sacctmgr about one that is. Where a
# cluster lacks them, it would fail, though Slurm needs no account there.
if shutil.which("sbatch"):
    import snakemake_executor_plugin_slurm as slurm

    if not shutil.which("sacct"):
        slurm.get_account = lambda logger: None
    if not shutil.which("sacctmgr"):
        slurm.validate_account = lambda account, logger: account


rule all:
    input:
        executed(),


rule cells:
    input:
        needs,
    output:
        ".flags/cells/{model}/{unit}-{part}of{parts}.done",
    wildcard_constraints:
        model="[^/]+",
        unit="[a-z_]+",
    params:
        settings=lambda wildcards: config["digest"] + config["contents"].get(wildcards.model, ""),
    priority: 100
    threads: config["threads"]
    resources:
        gpu=lambda wildcards: gpus_of(wildcards.model),
    shell:
        job("cells {wildcards.unit} {wildcards.model:q} {wildcards.part} {wildcards.parts}")


rule notebook:
    input:
        shown,
    output:
        ".flags/notebooks/{notebook}.done",
    wildcard_constraints:
        notebook="(?!00|08).*",
    params:
        # Its prose executes nothing.
        code=lambda wildcards: digest({"code": code_of(read(wildcards.notebook))}),
        parameters=lambda wildcards: str(config["notebooks"][wildcards.notebook]),
        settings=config["digest"] + digest({**config["contents"], **config["left_out"]}) + LIBRARY,
    priority: lambda wildcards: 99 - int(wildcards.notebook[:2])
    threads: config["threads"]
    resources:
        gpu=1,
    shell:
        job("notebook {wildcards.notebook:q}")


use rule notebook as efficiency with:  # it measures times, so nothing else runs beside it
    output:
        ".flags/notebooks/{notebook}.done",
    wildcard_constraints:
        notebook="08.*",
    threads: config["cores"]


use rule notebook as last with:  # it judges the results of all others
    input:
        executed("00"),
    wildcard_constraints:
        notebook="00.*",
    resources:
        gpu=0,
