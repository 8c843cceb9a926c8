"""What a run consists of: which jobs, in which order, and which cells each computes."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from harp_lib import __version__, graph, paths
from harp_lib.costs import cell_seconds
from harp_lib.expected_cells import NOTEBOOK_OF, expected_cells, experiment_models
from harp_lib.experiments import ablation_study
from harp_lib.graph import GROUP_SECONDS, build
from harp_lib.measure.models import slug
from harp_lib.profiles import load_profile

MINI = "smollm2-135m"


@pytest.fixture(autouse=True)
def results(monkeypatch, tmp_path):
    """An empty result store of this checkout."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def jobs_of(profile: str, numbers: str = "00 01 02 03 04 05 06 07 08", **options):
    notebooks = {f"{number}_title.ipynb": {"profile": profile} for number in numbers.split()}
    return build(load_profile(profile), notebooks, **options)


def all_cells(profile: str) -> set:
    settings = load_profile(profile)
    return {
        (experiment, model, *cell)
        for experiment in NOTEBOOK_OF
        for model in experiment_models(settings, experiment)
        for cell in expected_cells(settings, experiment, model)
    }


def store(profile: str, cells, version: str = __version__, content: str = "") -> None:
    for experiment, model, method, task in cells:
        file = paths.RESULTS / profile / experiment / slug(model) / method / f"{task}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content or json.dumps({"inputs": {"harp_lib": version}, "result": {}, "seconds": 1}))


def test_each_job_of_smoke_needs_what_it_reads():
    jobs = jobs_of("smoke", figures=True)
    needs = {name: set(job.needs) for name, job in jobs.items() if "gemma2" not in name}
    llama, gemma = "tiny-llama", "tiny-gemma2"
    search = {f"search/{llama}", f"search/{gemma}"}
    plans = {f"plans/{llama}", f"plans/{gemma}"}
    main = {f"scores-main_tables/{llama}-1", f"scores-main_tables/{gemma}-1"}
    layers = {f"layers/{llama}", f"layers/{gemma}", f"scores-ablations/{llama}-1", f"scores-ablations/{gemma}-1"}
    assert needs == {
        f"search/{llama}": set(),
        f"plans/{llama}": {f"search/{llama}"},
        f"layers/{llama}": {f"search/{llama}"},
        f"scores-main_tables/{llama}-1": {f"search/{llama}", f"plans/{llama}"},
        f"scores-ablations/{llama}-1": {f"search/{llama}", f"layers/{llama}"},
        f"scores-longbench/{llama}-1": {f"search/{llama}", f"plans/{llama}"},
        "notebook/01_title": set(),
        "notebook/02_title": search | {"notebook/01_title"},
        "notebook/03_title": search,
        "notebook/04_title": search | plans,
        "notebook/05_title": search | plans | main,
        "notebook/06_title": search | layers | main,
        "notebook/07_title": search | plans | {f"scores-longbench/{llama}-1", f"scores-longbench/{gemma}-1"},
        "notebook/08_title": search,
        "figures/all": {f"notebook/{number:02d}_title" for number in range(1, 9)},
        "last/00_title": {"figures/all"},
    }


@pytest.mark.parametrize("profile", ["smoke", "mini", "paper"])
def test_each_cell_is_computed_by_one_job_and_each_job_comes_after_its_needs(profile):
    jobs = jobs_of(profile, at_once=None, figures=True)
    computed = Counter(cell for job in jobs.values() for cell in job.missing)
    assert set(computed) == all_cells(profile)
    assert set(computed.values()) == {1}
    seen = set()
    for name, job in jobs.items():
        assert set(job.needs) <= seen
        assert set(job.missing) <= set(job.cells)
        assert name.startswith(("notebook", "figures", "last")) or job.missing, "it has something to do"
        seen.add(name)
    for name, job in jobs.items():
        if name.startswith("scores-"):
            assert job.arguments["cells"] == [cell[2:] for cell in job.missing]


def test_the_cells_of_expensive_notebooks_are_computed_before_them():
    jobs = jobs_of("mini")
    left = {cell[0] for number in ("05", "07") for cell in jobs[f"notebook/{number}_title"].missing}
    assert left == set()
    copies = {cell[2] for cell in jobs["notebook/06_title"].missing}
    assert copies == {"dense", "harp"}, "06 copies these from 05"
    assert jobs["notebook/06_title"].seconds == 0


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_scores_are_divided_evenly_among_the_jobs_at_once(at_once):
    jobs = jobs_of("mini", at_once=at_once)
    groups = [job for name, job in jobs.items() if name.startswith("scores-main_tables/")]
    largest = max(cell_seconds(load_profile("mini"), "main_tables", MINI).values()).seconds
    total = sum(job.seconds for job in groups)
    assert len(groups) == at_once
    for job in groups:
        assert abs(job.seconds - total / at_once) <= largest
        tasks = [task for _, task in job.arguments["cells"]]
        assert sum(before != after for before, after in pairwise(tasks)) == len(set(tasks)) - 1, "one after the other"


def test_on_a_cluster_groups_take_some_minutes_or_are_one_cell():
    jobs = jobs_of("paper", at_once=None)
    groups = [job for name, job in jobs.items() if name.startswith("scores-")]
    profile = load_profile("paper")
    seconds = {
        (experiment, model, *cell): estimate.seconds
        for experiment in ("main_tables", "ablations", "longbench")
        for model in profile["models"]
        for cell, estimate in cell_seconds(profile, experiment, model).items()
    }
    assert len(groups) > 100
    for job in groups:
        assert job.seconds == pytest.approx(sum(seconds[cell] for cell in job.missing))
        assert job.seconds <= GROUP_SECONDS + max(seconds[cell] for cell in job.missing)


def test_the_ablations_alone_want_two_methods_of_the_main_tables():
    jobs = jobs_of("mini", "06")
    assert [name.partition("/")[0] for name in jobs] == [
        "search",
        "layers",
        "scores-ablations",
        "scores-main_tables",
        "notebook",
    ]
    scores = jobs[f"scores-main_tables/{MINI}-1"]
    assert {cell[2] for cell in scores.missing} == {"dense", "harp"}
    assert len(scores.missing) == 22
    assert scores.arguments["source"] == "layers", "which need no baseline's plan"
    assert scores.needs == [f"search/{MINI}", f"layers/{MINI}"]


def test_stored_cells_are_not_computed_again():
    search = jobs_of("mini", "03")[f"search/{MINI}"].cells
    store("mini", search[:1])
    job = jobs_of("mini", "03")[f"search/{MINI}"]
    assert (job.missing, job.why) == (search[1:], "1 of 2 results missing")
    store("mini", search)
    jobs = jobs_of("mini", "03 04")
    assert list(jobs) == [f"plans/{MINI}", "notebook/03_title", "notebook/04_title"]
    assert jobs[f"plans/{MINI}"].needs == jobs["notebook/03_title"].needs == []
    store("mini", all_cells("mini"))
    jobs = jobs_of("mini")
    assert [name for name in jobs if not name.startswith("notebook/")] == ["last/00_title"]
    assert not any(job.missing for job in jobs.values())
    assert jobs["notebook/05_title"].why == jobs["notebook/02_title"].why == "reads stored results"


def test_a_notebook_whose_cells_jobs_compute_says_so():
    jobs = jobs_of("mini", "04 05")
    assert jobs["notebook/05_title"].why == "reads what is computed before it"
    assert jobs["notebook/04_title"].why == "no result stored"


@pytest.mark.parametrize(
    "cell",
    [
        {"version": "0.0.1"},
        {"content": '{"inputs": {"harp_lib": "0.1.0"}, "resu'},
        {"content": '{"inputs": {}, "result": {}}'},
        {"content": json.dumps({"inputs": {"harp_lib": __version__}, "result": {"failed": "out of memory"}})},
    ],
)
def test_what_cannot_be_read_again_is_missing(cell):
    search = jobs_of("mini", "03")[f"search/{MINI}"].cells
    store("mini", search, **cell)
    assert jobs_of("mini", "03")[f"search/{MINI}"].missing == search


def test_06_shares_the_scores_that_its_study_shares():
    assert graph.SHARED_METHODS == ablation_study.SHARED


def test_outdated_cells_are_computed_again():
    store("mini", all_cells("mini"))
    jobs = jobs_of("mini", outdated={"main_tables": "stored with other options"})
    missing = {cell for job in jobs.values() for cell in job.missing}
    assert missing == {cell for cell in all_cells("mini") if cell[0] == "main_tables"}
    assert {job.why for job in jobs.values() if job.missing} == {"stored with other options"}
    assert {name.partition("/")[0] for name in jobs} == {"scores-main_tables", "notebook", "last"}


def test_a_model_of_unknown_cost_is_divided_by_task_on_a_cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "cell_seconds", lambda profile, experiment, model: {})
    scores = [job for name, job in jobs_of("mini", "05", at_once=None).items() if name.startswith("scores-")]
    assert all(len({cell[3] for cell in job.cells}) == 1 for job in scores)
    assert len(scores) == len({cell[3] for job in scores for cell in job.cells})
    tiny = [name for name in jobs_of("smoke", "05", at_once=None) if name.startswith("scores-")]
    assert len(tiny) == 2, "one for each model"
    assert len([name for name in jobs_of("smoke", "05", at_once=2) if name.startswith("scores-")]) == 4


def test_only_the_models_whose_search_a_notebook_reads_are_searched():
    def searched(numbers):
        return [name.partition("/")[2] for name in jobs_of("paper", numbers) if name.startswith("search/")]

    assert len(searched("04")) == 4
    assert len(searched("03")) == 5
    assert searched("08") == [], "shapes with printed alpha"
    jobs = jobs_of("paper", "03 04")
    large = "search/meta-llama--Llama-3.1-70B"
    assert large in jobs["notebook/03_title"].needs
    assert large not in jobs["notebook/04_title"].needs
    assert "search/tiny-llama" in jobs_of("smoke", "08")


def test_what_nobody_measured_is_unknown():
    jobs = jobs_of("smoke")
    assert jobs["search/tiny-llama"].seconds is None
    store("smoke", jobs["search/tiny-llama"].cells, version="0.0.1")
    assert jobs_of("smoke")["search/tiny-llama"].seconds == 2, "outdated, but it was measured"


def test_the_last_notebook_waits_for_what_there_is():
    assert jobs_of("smoke", "00")["last/00_title"].needs == []
    assert jobs_of("smoke", "00 01")["last/00_title"].needs == ["notebook/01_title"]


def test_the_snakefile_has_one_rule_for_each_job(tmp_path):
    jobs = jobs_of("paper", figures=True)
    run = {"threads": 1, "cores": 4, "jobs": {name: asdict(job) for name, job in jobs.items()}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    snakefile = Path(__file__).resolve().parents[1] / "Snakefile"
    command = [sys.executable, "-m", "snakemake", "--snakefile", snakefile, "--directory", tmp_path, "--cores", "4"]
    command += ["--configfile", tmp_path / "run.json", "--scheduler", "greedy", "--dry-run", "--quiet", "rules"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)
    kinds = Counter(name.partition("/")[0].partition("-")[0] for name in jobs)
    expected = kinds | {"notebook": kinds["notebook"] - 1, "efficiency": 1, "all": 1, "total": len(jobs) + 1}
    assert {rule: int(count) for rule, count in counts.items() if count.isdigit()} == expected
