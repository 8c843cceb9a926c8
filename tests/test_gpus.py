"""Jobs on GPUs: which ones a job sees, and what is said before a run whose weights do not fit."""

import os
import threading

import pytest
from transformers import AutoConfig, LlamaConfig

from harp_lib import config, gpus, jobs
from harp_lib.accounting import parameters


@pytest.fixture
def visible_gpus(tmp_path, monkeypatch):
    """A function that lets a job take GPUs, and returns those that it sees."""
    monkeypatch.setattr(config, "RESULTS", tmp_path)
    monkeypatch.setattr(jobs, "_held_locks", [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # so that it is restored afterwards
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

    def take(gpus, number):
        jobs._take_gpus(gpus, number)
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    return take


def test_each_job_holds_a_gpu_of_its_own(visible_gpus):
    assert visible_gpus([], 1) is None
    assert visible_gpus(["4", "GPU-x"], 1) == "4"
    assert visible_gpus(["4", "GPU-x"], 1) == "GPU-x"
    jobs._held_locks.pop(0).lock.release()  # as at the end of the first process
    assert visible_gpus(["4", "GPU-x"], 1) == "4"


def test_a_job_holds_as_many_gpus_as_it_reserved(visible_gpus):
    assert visible_gpus(["0", "1", "2"], 1) == "0"
    assert visible_gpus(["0", "1", "2"], 0) == "", "it computes nothing"
    assert visible_gpus(["0", "1", "2"], 2) == "1,2"
    assert visible_gpus(["5"], 2) == "5", "a machine with fewer gives what it has"


def test_two_gpus_are_waited_for(visible_gpus):
    visible_gpus(["0", "1"], 1)
    (lock,) = jobs._held_locks
    job = threading.Thread(target=visible_gpus, args=(["0", "1"], 2), daemon=True)
    job.start()
    job.join(1)
    assert job.is_alive()
    lock.lock.release()
    job.join(10)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1,0"


def test_a_gpu_that_torch_cannot_use_is_named_where_the_dtype_would_change(monkeypatch):
    def init():
        raise RuntimeError("The NVIDIA driver on your system is too old")

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.init", init)
    paper = config.read_profile("paper")
    monkeypatch.setattr(gpus, "free_memory", lambda: [])
    gpus.check_usable(paper)  # there is none
    monkeypatch.setattr(gpus, "free_memory", lambda: [2**34])
    gpus.check_usable(config.read_profile("mini"))  # which is in float32 on a GPU, too
    with pytest.raises(ValueError, match=r"(?s)cannot use the GPU.*too old.*HARP_PYTHON"):
        gpus.check_usable(paper)


def test_a_job_bears_a_disk_that_does_not_answer_for_a_while(monkeypatch):
    class Killed(Exception):
        pass

    def kill(*args):
        raise Killed

    disk_errors = [OSError()] * (jobs.MOST_FAILURES - 1)
    answers = [*disk_errors, True, *disk_errors, True, *disk_errors, OSError(), True]

    def next_answer(*args):
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(jobs, "_is_under_way", next_answer)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr("os.killpg", kill)
    with pytest.raises(Killed):
        jobs._die_with_run({}, None)
    assert answers == [True], "too many in a row"


def test_weights_that_do_not_fit_are_named_before_a_run():
    answer = "0, GPU-a, 81000\n1, GPU-b, 40000\n2, GPU-c, [N/A]\n"
    assert gpus.free_of_visible(answer, None) == [81000 * 2**20, 40000 * 2**20]
    assert gpus.free_of_visible(answer, "1,GPU-a") == [81000 * 2**20, 40000 * 2**20]
    assert gpus.free_of_visible(answer, "GPU-b") == [40000 * 2**20]
    assert gpus.free_of_visible(answer, "") == []
    gib = 2**30
    assert gpus.shortage("a/large", 131 * gib, [79 * gib, 79 * gib], 2, ["b/c"]) is None
    warning = gpus.shortage("a/large", 131 * gib, [79 * gib, 78 * gib], 1, ["b/c", "d/e"])
    assert "a/large has 131 GiB of weights, and 1 GPU with 78 GiB free" in warning
    assert warning.endswith("leave it out by --models b/c,d/e")


def test_weights_are_counted_and_the_gpus_of_a_run_too(tmp_path, monkeypatch):
    folder = tmp_path / "large"
    LlamaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=2**20).save_pretrained(folder)
    profile = config.read_profile("paper") | {"models": [str(folder), "b/c"]}
    weights = gpus.bytes_of_weights(str(folder), "bfloat16")
    assert weights == 2 * parameters(AutoConfig.from_pretrained(folder))
    monkeypatch.setattr(gpus, "free_memory", lambda: [weights // 2 + 1] * 2)
    (warning,) = gpus.warnings_of(profile, [str(folder)], jobs=1)
    assert warning.endswith("--models b/c")
    profile["alpha_search"]["extra_models"] = [str(folder)]
    assert gpus.warnings_of(profile, [str(folder)], jobs=1) == []
    assert len(gpus.warnings_of(profile, [str(folder)], jobs=2)) == 1
    assert gpus.gpus_of("meta-llama--Llama-3.1-70B") == 2
