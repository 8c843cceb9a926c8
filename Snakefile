# The batch engine behind run_all.sh, which starts it in data/results/<profile>, with .run.json as configuration:
#
#     search ──▶ plans ──▶ scores, longbench ──▶ notebook ──▶ last (00_start_here) ──▶ figures
#           ├──▶ layers ─▶ ablations ────────────▶
#           └──▶ efficiency, frontier ───────────▶
#
# A job's output is a flag: it came to its end, made this, took so long. Results are cells of the result store, where a
# job that runs again finds what it had. Where one job runs at a time, notebooks compute their own cells.
import hashlib
import sys
from pathlib import Path

import harp_lib
from harp_lib.config import DATA, NOTEBOOKS as SOURCES, PAPER, slug
from harp_lib.experiments import IN_PARTS, NOTEBOOKS, UNITS

# What an executed notebook may depend on beside its source and the results.
LIBRARY = [*Path(harp_lib.__file__).parent.rglob("*.py"), *DATA.glob("*.*"), *PAPER.glob("*.*")]
LIBRARY = b"".join(file.read_bytes() for file in sorted(LIBRARY))
LIBRARY = hashlib.sha256(LIBRARY).hexdigest()[:8]
LARGE = ("meta-llama--Llama-3.1-70B",)  # for two GPUs


def job(what):
    """The command of a job. Side by side, each prints to a log beside its flag, and only that it is done to all."""
    command = f'"{sys.executable}" -P -m harp_lib.batch {{output:q}} {config["began"]} {what}'
    return command if config["alone"] else f"{command} >{{output:q}}.log 2>&1 && echo done: {what}"


def flags(unit, model=None):
    """The flags of a unit: of one model, or of all that it is computed for."""
    models = [slug(name) for name in config["models"][unit]]
    number = config["parts"].get(unit, 1)
    parts = [f"-{part}of{number}" for part in range(1, number + 1)] if number > 1 else [""]
    return [f".flags/cells/{name}/{unit}{part}.done" for name in models if model in (None, name) for part in parts]


def needs(wildcards):
    """What the same model has to have before a unit; the scores that 06 shares with 05 are left to 05."""
    shared = ("scores",) if wildcards.unit == "ablations" and any(name[:2] == "05" for name in config["notebooks"]) else ()
    return [flag for unit in (*UNITS[wildcards.unit].needs, *shared) for flag in flags(unit, wildcards.model)]


def shown(wildcards):
    """What a notebook shows; but what 08 times, it computes itself, alone."""
    if config["alone"]:
        return []
    units = NOTEBOOKS.get(wildcards.notebook[:2], ())
    return [flag for unit in units for flag in flags("search" if unit == "efficiency" else unit)]


def executed(*without):
    return [f".flags/notebooks/{name}.done" for name in config["notebooks"] if name[:2] not in without]


rule all:
    input:
        executed(),
        [".flags/figures.done"] if config["whole"] else [],


rule cells:
    input:
        needs,
    output:
        ".flags/cells/{model}/{unit}.done",
    wildcard_constraints:
        model="[^/]+",
        unit="[a-z_]+",
    params:
        settings=config["settings"],
    priority: 100
    threads: config["threads"]
    resources:
        gpu=lambda wildcards: 2 if wildcards.model in LARGE else 1,
    shell:
        job("cells {wildcards.unit} {wildcards.model:q}")


rule tasks:  # one group of the tasks that a unit scores
    input:
        needs,
    output:
        ".flags/cells/{model}/{unit}-{part}of{parts}.done",
    wildcard_constraints:
        model="[^/]+",
        unit="|".join(IN_PARTS),
    params:
        settings=config["settings"],
    priority: 100
    threads: config["threads"]
    resources:
        gpu=1,
    shell:
        job("cells {wildcards.unit} {wildcards.model:q} {wildcards.part} {wildcards.parts}")


rule notebook:
    input:
        shown,
        source=lambda wildcards: str(SOURCES / f"{wildcards.notebook}.ipynb"),
    output:
        ".flags/notebooks/{notebook}.done",
    wildcard_constraints:
        notebook="(?!00|08).*",
    params:
        parameters=lambda wildcards: str(config["notebooks"][wildcards.notebook]),
        settings=config["settings"] + LIBRARY,
    priority: lambda wildcards: 99 - int(wildcards.notebook[:2])
    threads: config["threads"]
    resources:
        gpu=1,
    shell:
        job("notebook {wildcards.notebook:q}")


use rule notebook as efficiency with:  # is timed, so nothing else runs beside it
    output:
        ".flags/notebooks/{notebook}.done",
    wildcard_constraints:
        notebook="08.*",
    threads: config["cores"]


use rule notebook as last with:  # judges what the others found
    input:
        executed("00"),
        source=lambda wildcards: str(SOURCES / f"{wildcards.notebook}.ipynb"),
    wildcard_constraints:
        notebook="00.*",
    resources:
        gpu=0,


rule figures:
    input:
        executed(),
    output:
        ".flags/figures.done",
    params:
        settings=config["settings"] + LIBRARY,
    shell:
        job("figures")
