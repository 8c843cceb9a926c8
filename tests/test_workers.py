"""Jobs in parallel processes: all are done, and one that kills its process costs itself alone."""

import os
import signal

import pytest

from harp_lib.measure.workers import devices_for, run_jobs


class Squarer:
    """What a worker does in these tests."""

    def __init__(self, offset):
        self.offset = offset

    def __call__(self, job):
        if job == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if job == "exit":
            os._exit(3)
        if job == "where":
            return os.environ["CUDA_VISIBLE_DEVICES"]
        return job * job + self.offset


def done(*arguments):
    """Jobs and results; what each took is some time."""
    found = list(run_jobs(*arguments))
    assert all(seconds > 0 or "failed" in result for _, result, seconds in found)
    return [(job, result) for job, result, _ in found]


def test_every_job_is_done_once():
    assert sorted(done(range(7), Squarer, (1,), [None, None])) == [(n, n * n + 1) for n in range(7)]


def test_more_processes_than_jobs():
    assert done([3], Squarer, (0,), [None, None]) == [(3, 9)]
    assert done([], Squarer, (0,), [None, None]) == []


def test_a_process_that_dies_costs_its_job():
    found = dict(done([1, "kill", 2, "exit", 3], Squarer, (0,), [None, None]))
    assert found == {
        1: 1,
        2: 4,
        3: 9,
        "kill": {"failed": "the worker process died (SIGKILL): out of memory?"},
        "exit": {"failed": "the worker process died (exit code 3)"},
    }


def test_each_process_sees_its_own_gpu():
    for device in ("4", "7"):
        assert done(["where"], Squarer, (0,), [device]) == [("where", device)]


def test_processes_end_with_the_caller():
    jobs = run_jobs(range(4), Squarer, (0,), [None])
    assert next(jobs)[:2] == (0, 0)
    jobs.close()
    with pytest.raises(StopIteration):
        next(jobs)


def test_one_process_per_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert devices_for("gpus") == ["2", "5"]
    assert devices_for(3) == [None] * 3
