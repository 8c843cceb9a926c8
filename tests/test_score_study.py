"""Cells of scores: resumed, failed, in parallel."""

import pytest

from harp_lib.experiments import score_study
from harp_lib.experiments.alpha_study import EXPERIMENT as ALPHA
from harp_lib.experiments.baseline_study import EXPERIMENT as BASELINES
from harp_lib.experiments.score_study import EXPERIMENT, ScoreStudy, method_plans
from harp_lib.methods import METHODS
from harp_lib.methods.alpha_search import model_digest
from harp_lib.profiles import load_profile
from harp_lib.pruning.plan import PruningPlan
from harp_lib.results import ResultStore
from harp_lib.score_frames import average_frame, difference_frame, score_frame

PLANS = {"dense": None, "harp": PruningPlan.value_only(6, [0.3, 0.0])}
TASKS = ("nq_open", "piqa")


@pytest.fixture
def profile():
    return load_profile("smoke", ["tiny-llama"], limit=2)


def scored(profile, root, plans=PLANS, tasks=TASKS):
    store = ResultStore("smoke", EXPERIMENT, root=root)
    ScoreStudy("tiny-llama", "digest", profile, store).evaluate(plans, tasks)
    return store


def results(store):
    return {key: cell["result"] for key, cell in store.cells.items()}


def test_a_second_run_reads(profile, tmp_path):
    first, again = scored(profile, tmp_path), scored(profile, tmp_path)
    assert first.summary == "4 cells computed, 0 read from the result store"
    assert again.summary == "0 cells computed, 4 read from the result store"
    assert results(first) == results(again)
    dense, harp = (results(first)["tiny-llama", method, "nq_open"] for method in PLANS)
    assert dense["answers"] != harp["answers"], "the plan was applied"
    assert (dense["head_ratio"], harp["head_ratio"]) == (0, 1 / 3)


def test_another_plan_or_limit_is_another_cell(profile, tmp_path):
    scored(profile, tmp_path)
    assert scored(profile, tmp_path, PLANS | {"harp": PruningPlan.value_only(6, [0.4])}).counts["computed"] == 2
    assert scored(load_profile("smoke", ["tiny-llama"], limit=1), tmp_path).counts["computed"] == 4


def test_a_failing_cell_is_recorded_and_tried_again(profile, tmp_path, monkeypatch):
    def out_of_memory(*_):
        raise RuntimeError("out of memory\nmore lines")

    with monkeypatch.context() as patched:
        patched.setattr(score_study, "temporarily_pruned", out_of_memory)
        store = scored(profile, tmp_path)
    assert {result["failed"] for result in results(store).values()} == {"RuntimeError: out of memory"}
    assert score_frame(store.cells)["score"].isna().all()
    assert scored(profile, tmp_path).summary == "4 cells computed, 0 read from the result store"


def test_a_missing_task_is_named_and_the_rest_goes_on(profile, tmp_path):
    from harp_lib import paths

    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "piqa").symlink_to(paths.DATA / "mini" / "piqa")
    some = load_profile("smoke", ["tiny-llama"], datasets=str(tmp_path / "rows"), limit=2)
    store = scored(some, tmp_path)
    assert results(store)["tiny-llama", "dense", "nq_open"] == {"failed": "rows has no folder nq_open"}
    assert len(results(store)["tiny-llama", "dense", "piqa"]["scores"]) == 2
    frame = score_frame(store.cells)
    assert frame.groupby("task")["failed"].count().to_dict() == {"NaturalQuestions": 2, "PIQA": 0}
    assert list(average_frame(frame)["tasks"]) == [1, 1], "averages are of what is there"
    assert set(difference_frame(store.cells, frame)["task"]) == {"PIQA", "Average"}


def test_two_processes_find_what_one_finds(profile, tmp_path):
    alone = scored(profile, tmp_path / "one")
    profile["evaluation"]["workers"] = 2
    together = scored(profile, tmp_path / "two")
    assert results(alone) == results(together)
    assert all(cell["seconds"] > 0 for cell in together.cells.values()), "those of the process that computed it"
    assert scored(profile, tmp_path / "two").summary == "0 cells computed, 4 read from the result store"


def test_an_interrupted_run_continues(profile, tmp_path, monkeypatch):
    score, calls = score_study.Scorer.score, []

    def interrupted(self, *job):
        calls.append(job)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score(self, *job)

    with monkeypatch.context() as patched:
        patched.setattr(score_study.Scorer, "score", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scored(profile, tmp_path)
    assert scored(profile, tmp_path).summary == "2 cells computed, 2 read from the result store"


def test_plans_of_every_method(monkeypatch, tmp_path, tiny):
    monkeypatch.setattr("harp_lib.paths.RESULTS", tmp_path)
    profile = load_profile("smoke", ["tiny-llama"])
    plans, digest = method_plans("tiny-llama", profile)
    assert list(plans) == ["dense", *METHODS]
    assert digest == model_digest(tiny("tiny-llama"))
    assert (tmp_path / "smoke" / ALPHA).is_dir()
    assert (tmp_path / "smoke" / BASELINES).is_dir()
    assert not list(tmp_path.rglob("run.json")), "the lists of notebooks 03 and 04 stay theirs"
