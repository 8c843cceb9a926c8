# The batch engine behind run_all.sh, which starts it in a folder of its own, with run.json as configuration:
#
#     search ──▶ plans ──▶ scores-main_tables, scores-longbench ──▶ notebook ──▶ figures ──▶ last (00_start_here)
#           └──▶ layers ─▶ scores-ablations ───────────────────────▶
#
# harp_lib/graph.py says which jobs a run has and what each needs: those whose cells are stored are left out.
# harp_lib/job.py does a job. What a job makes here is the note how it fared; results go to the result store.
import os
import sys

JOB = f'"{sys.executable}" -P -m harp_lib.job "{os.getcwd()}"'


def needs(name):
    return lambda wildcards: [f"{job}.json" for job in config["jobs"][name.format(**wildcards)]["needs"]]


rule all:
    input:
        [f"{job}.json" for job in config["jobs"]],


rule search:
    input:
        needs("search/{model}"),
    output:
        "search/{model}.json",
    priority: 3
    threads: config["threads"]
    shell:
        JOB + " search/{wildcards.model:q}"


rule plans:
    input:
        needs("plans/{model}"),
    output:
        "plans/{model}.json",
    priority: 2
    threads: config["threads"]
    shell:
        JOB + " plans/{wildcards.model:q}"


rule layers:
    input:
        needs("layers/{model}"),
    output:
        "layers/{model}.json",
    priority: 2
    threads: config["threads"]
    shell:
        JOB + " layers/{wildcards.model:q}"


rule scores:
    input:
        needs("scores-{group}"),
    output:
        "scores-{group}.json",
    priority: 1
    threads: config["threads"]
    shell:
        JOB + " scores-{wildcards.group:q}"


rule notebook:
    input:
        needs("notebook/{notebook}"),
    output:
        "notebook/{notebook}.json",
    wildcard_constraints:
        notebook="(?!08).*",
    threads: config["threads"]
    shell:
        JOB + " notebook/{wildcards.notebook:q}"


rule efficiency:  # is timed, so nothing else runs beside it
    input:
        needs("notebook/08_{title}"),
    output:
        "notebook/08_{title}.json",
    threads: config["cores"]
    shell:
        JOB + " notebook/08_{wildcards.title:q}"


rule figures:
    input:
        needs("figures/all"),
    output:
        "figures/all.json",
    shell:
        JOB + " figures/all"


rule last:
    input:
        needs("last/{notebook}"),
    output:
        "last/{notebook}.json",
    shell:
        JOB + " last/{wildcards.notebook:q}"
