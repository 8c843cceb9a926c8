"""Time 5-shot MMLU in three runs: lm-eval's `hf`, `hf-prefix`, and `vllm` where it is installed.

    python data/costs/hf_prefix.py --datasets DIR [--model smollm2-135m] [--subjects 6] [--rows 20]
        [--vllm PYTHON]

The backends take turns, each in a process of its own, by lm-eval's command line. Seconds are those
that lm-eval reports, from the beginning of its evaluation to its end, with loading the model.
``--vllm`` is the Python of an environment that holds vLLM and lm-eval. Prints the accuracy of each
backend, the ratio of stock's seconds to its seconds, and the lowest and highest of the runs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml

from harp_lib import load_model
from harp_lib.config import CHECKOUT
from harp_lib.evaluation.benchmarks import BENCHMARKS, available_tasks

GROUP = "mmlu_rows"


def write_tasks(folder: Path, datasets: Path, subjects: int) -> None:
    """lm-eval's MMLU with rows of a folder, and a group of the subjects."""
    names = []
    official = available_tasks(BENCHMARKS["mmlu"], str(datasets), subjects)
    for name, file in official.items():
        data_files = {rows.stem: str(rows.resolve()) for rows in (datasets / name).glob("*.jsonl")}
        task = {
            "include": str(file),
            "task": f"rows_{name}",
            "tag": None,
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": data_files},
        }
        names.append(task["task"])
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    group = {"group": GROUP, "task": names, "aggregate_metric_list": [{"metric": "acc"}]}
    (folder / "group.yaml").write_text(yaml.safe_dump(group), encoding="utf-8")


def evaluated(python: str, backend: str, model: Path, tasks: Path, rows: int, out: Path) -> dict:
    """What lm-eval's command line writes for one backend."""
    launcher = "harp_lib.prefix_lm" if backend == "hf-prefix" else "lm_eval"
    command = [python, "-P", "-m", launcher, "--model", backend]
    command += ["--model_args", f"pretrained={model},dtype=float32"]
    command += ["--tasks", GROUP, "--include_path", str(tasks), "--num_fewshot", "5"]
    command += ["--limit", str(rows), "--output_path", str(out), "--batch_size", "8"]
    command += ["--device", "cpu"]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{backend}: {done.stderr[-2000:]}")
    (file,) = out.rglob("results_*.json")
    return json.loads(file.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=Path, required=True, help="a folder of real rows")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--subjects", type=int, default=6)
    parser.add_argument("--rows", type=int, default=20, help="of each subject")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--vllm", metavar="PYTHON", help="of an environment with vLLM and lm-eval")
    arguments = parser.parse_args()

    backends = {"hf": sys.executable, "hf-prefix": sys.executable}
    if arguments.vllm:
        backends["vllm"] = arguments.vllm
    seconds = {backend: [] for backend in backends}
    accuracies = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, tokenizer = load_model(arguments.model)
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        (folder / "tasks").mkdir()
        write_tasks(folder / "tasks", arguments.datasets.expanduser(), arguments.subjects)
        for run in range(arguments.runs):
            for backend, python in backends.items():
                out = folder / f"{backend}-{run}"
                results = evaluated(
                    python, backend, folder / "model", folder / "tasks", arguments.rows, out
                )
                seconds[backend].append(float(results["total_evaluation_time_seconds"]))
                accuracies[backend] = results["results"][GROUP]["acc,none"]
                print(f"run {run}, {backend}: {seconds[backend][-1]:.1f} s", flush=True)
    stock = np.array(seconds["hf"])
    print("| backend | accuracy | stock's seconds / its seconds | lowest | highest |")
    print("|---|---|---|---|---|")
    for backend, taken in seconds.items():
        ratios = stock / np.array(taken)
        print(
            f"| {backend} | {accuracies[backend]:.4f} | {np.exp(np.log(ratios).mean()):.1f} "
            f"| {ratios.min():.1f} | {ratios.max():.1f} |"
        )


if __name__ == "__main__":
    main()
