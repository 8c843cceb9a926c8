# The rules behind run_all.sh. harp_lib/batch.py starts Snakemake in the root of the checkout, and the
# settings of the run, .run.json, are Snakemake's configuration.
#
#     cells ──▶ the list of a unit for a model ──▶ an executed notebook ──▶ 00_start_here
#
# A list, data/results/<profile>/<unit>/<model>.jsonl, names cells of the result store: a job that
# runs again reads the cells that it finished before. An output that is there stays until its job has
# made it anew (`update`).
import hashlib
import shlex
import shutil
import sys
from pathlib import Path

import harp_lib
from harp_lib import jobs
from harp_lib.config import CONFIGS, DATA, PAPER, slug
from harp_lib.gpus import gpus_of
from harp_lib.notebooks import code_of, read
from harp_lib.results import digest
from harp_lib.units import UNITS, units_of

PYTHON = sys.executable  # whose name may have any characters; quoted in `job`
RESULTS = f"data/results/{config['profile']}"
EXECUTED = f"notebooks/executed/{config['profile']}"
LOGS = f"{RESULTS}/{jobs.LOGS}"


def library_digest():
    """A digest of what an executed notebook depends on beside its own code and the results."""
    code = Path(harp_lib.__file__).parent.rglob("*.py")
    data = [file for folder in (DATA, CONFIGS, PAPER) for file in folder.glob("*.*")]
    files = sorted([*code, *data])
    contents = b"".join(file.read_bytes() for file in files)
    return hashlib.sha256(contents).hexdigest()[:8]


def job(what):
    """The shell command of a job.

    Jobs that run side by side print to their logs, and here only that they are done. In a log each
    update of a progress bar is a line.
    """
    run = f"{RESULTS}/{jobs.RUN_FILE} {config['began']} {{log:q}} {{resources.gpu}}"
    command = f"{{PYTHON:q}} -P -m harp_lib.jobs {run} {what}"
    seldom = "export TQDM_MININTERVAL=30"  # tqdm reads it when it is imported
    if config["one_at_a_time"]:
        return f"[ -t 1 ] || {seldom}; {command}"
    command = f"{seldom}; {command}"
    # The inner shell ends if nobody reads that the job is done, and the job is done all the same.
    return f"{command} >{{log:q}} 2>&1 && ( (echo done: {what}) || true)"


def lists(unit, model=None):
    """The list of a unit, for a model given by its slug or for each that it is computed for."""
    slugs = [slug(name) for name in config["models"][unit]]
    return [f"{RESULTS}/{unit}/{name}.jsonl" for name in slugs if model in (None, name)]


def needs(wildcards):
    """The lists that the same model has to have before that of a unit."""
    units = list(UNITS[wildcards.unit].needs)
    # Notebooks 05 and 06 share scores; if both run, 05 computes them.
    # So do likelihoods the dense model's answers to BBH: one would wait for the other with its GPU.
    shares_scores = wildcards.unit in ("ablations", "likelihoods")
    if shares_scores and any(name[:2] == "05" for name in config["notebooks"]):
        units.append("scores")
    return [file for unit in units for file in lists(unit, wildcards.model)]


def settings_of(wildcards):
    """What the cells of a model depend on; if it changes, their job runs again."""
    return config["digest"] + config["contents"].get(wildcards.model, "")


def parts(wildcards):
    """The lists of groups of tasks, which together are the list of a unit."""
    total = config["parts"][wildcards.unit]
    folder = f"{RESULTS}/{wildcards.unit}/{wildcards.model}.parts"
    return [f"{folder}/{number}of{total}.jsonl" for number in range(1, total + 1)]


def shown(wildcards):
    """The lists that a notebook shows."""
    return [file for unit in units_of(wildcards.notebook) for file in lists(unit)]


def gpus_of_notebook(wildcards):
    """As many as the largest of the models that it shows needs: it reads their weights."""
    models = [model for unit in units_of(wildcards.notebook) for model in config["models"][unit]]
    return max((gpus_of(slug(model)) for model in models), default=1)


def executed(without=None):
    """The executed notebooks of this run, but for one that is given by its number."""
    return [f"{EXECUTED}/{name}.ipynb" for name in config["notebooks"] if name[:2] != without]


LIBRARY = library_digest()
IN_PARTS = [unit for unit, total in config["parts"].items() if total > 1]

# The executor asks sacct for an account if none is given, and sacctmgr about one that is. Where a
# cluster lacks them, it would fail, though Slurm needs no account there.
if shutil.which("sbatch"):
    import snakemake_executor_plugin_slurm as slurm

    if not shutil.which("sacct"):
        slurm.get_account = lambda logger: None
    if not shutil.which("sacctmgr"):
        slurm.validate_account = lambda account, logger: account


localrules:
    all,


wildcard_constraints:
    model="[^/]+",


rule all:
    input:
        executed(),


# Where one job runs at a time, it computes for all models what no earlier notebook shows.
computed = set()
for name in config["notebooks"] if config["one_at_a_time"] else ():
    units = [unit for unit in units_of(name) if unit not in computed]
    computed.update(units)
    if not units:
        continue

    rule:
        name:
            f"cells_{name[:2]}"
        output:
            [update(file) for unit in units for file in lists(unit)],
        log:
            f"{LOGS}/cells/{name[:2]}.log",
        params:
            units=" ".join(units),
            settings=config["digest"] + digest(config["contents"]),
        priority: 200 - 2 * int(name[:2])
        threads: config["threads"]
        resources:
            gpu=0,
        shell:
            job("units {params.units}")


if not config["one_at_a_time"]:

    rule cells:
        input:
            needs,
        output:
            update(f"{RESULTS}/{{unit}}/{{model}}.jsonl"),
        log:
            f"{LOGS}/cells/{{model}}/{{unit}}.log",
        wildcard_constraints:
            unit="|".join(set(UNITS) - set(IN_PARTS) - {"efficiency"}),
        params:
            settings=settings_of,
            part="",
        priority: 200
        threads: config["threads"]
        resources:
            gpu=lambda wildcards: gpus_of(wildcards.model),
        shell:
            job("cells {wildcards.unit} {wildcards.model:q} {params.part}")

    use rule cells as efficiency with:  # it measures times, so nothing else runs beside it
        wildcard_constraints:
            unit="efficiency",
        threads: config["cores"]

    use rule cells as part with:
        output:
            update(f"{RESULTS}/{{unit}}/{{model}}.parts/{{part}}of{{parts}}.jsonl"),
        log:
            f"{LOGS}/cells/{{model}}/{{unit}}-{{part}}of{{parts}}.log",
        wildcard_constraints:
            unit="|".join(IN_PARTS) or "-",
        params:
            settings=settings_of,
            part="{part} {parts}",

    rule joined:
        localrule: True
        input:
            parts,
        output:
            update(f"{RESULTS}/{{unit}}/{{model}}.jsonl"),
        wildcard_constraints:
            unit="|".join(IN_PARTS) or "-",
        shell:
            "cat {input:q} >{output:q}"


rule notebook:
    input:
        shown,
    output:
        update(f"{EXECUTED}/{{notebook}}.ipynb"),
    log:
        f"{LOGS}/notebooks/{{notebook}}.log",
    wildcard_constraints:
        notebook="(?!00|08)[^/]+",
    params:
        # Its prose executes nothing.
        code=lambda wildcards: digest({"code": code_of(read(wildcards.notebook))}),
        parameters=lambda wildcards: str(config["notebooks"][wildcards.notebook]),
        settings=config["digest"] + digest({**config["contents"], **config["left_out"]}) + LIBRARY,
    priority: lambda wildcards: 199 - 2 * int(wildcards.notebook[:2])
    threads: config["threads"]
    resources:
        gpu=gpus_of_notebook,
    shell:
        job("notebook {wildcards.notebook:q}")


use rule notebook as timed with:  # it measures times too
    wildcard_constraints:
        notebook="08[^/]+",
    threads: config["cores"]


use rule notebook as last with:  # it judges the results of all others
    input:
        executed(without="00"),
    wildcard_constraints:
        notebook="00[^/]+",
    resources:
        gpu=0,
