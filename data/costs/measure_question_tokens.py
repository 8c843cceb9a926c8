"""Count how long the questions of the paper profile are, for ``harp_lib.costs``.

    python data/costs/measure_question_tokens.py FOLDER

FOLDER holds real rows, ``<lm-eval task>/<split>.jsonl``, as ``--datasets`` takes them; a part of each task's rows will
do. lm-eval builds each question with the paper profile's examples, LongBench's in its official form and cut in the
middle; SmolLM2's tokenizer counts, which makes somewhat more tokens of a text than those of the paper's models. Only
counts are written to ``question_tokens.csv`` beside this file:

======================  ============================================================================================
task, shots             as in the profile
questions               in the paper's benchmark: its appendix; for LongBench that paper's Table 1 (Bai et al., 2024);
                        for MMLU the dataset card of cais/mmlu, whose test split lm-eval asks, all 57 subjects of it
rows_measured           of FOLDER; where a task has subtasks, of all of them together
texts_per_question      that the model reads: one for each choice, one in all where the choices are single tokens
tokens_per_text         mean; of written answers the prompt
longest_text            in tokens
answer_tokens           of a written answer at most, by lm-eval's or LongBench's own limit; 0 where answers are chosen
======================  ============================================================================================

The pages of WikiText-2's test split are in it too, as the task ``wikitext``.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from lm_eval.api.instance import Instance
from transformers import PreTrainedTokenizerBase

from harp_lib.measure import longbench
from harp_lib.measure.benchmarks import ALL_BENCHMARKS, LONGBENCH, Benchmark
from harp_lib.measure.corpora import load_corpus
from harp_lib.measure.evaluation import Evaluator, _quiet_lm_eval
from harp_lib.measure.models import load_model
from harp_lib.profiles import load_profile
from harp_lib.published import published

DEFAULT_ANSWER = 256  # tokens, where a task sets no limit: HFLM's own
MMLU_QUESTIONS = 14042  # the card's number for the test split of the configuration "all"; the appendix has another
LONGBENCH_QUESTIONS = {"longbench_multifieldqa_en": 150, "longbench_lcc": 500, "longbench_repobench-p": 500}  # else 200


def measure(folder: str) -> pd.DataFrame:
    """One row for each benchmark, and one for WikiText-2."""
    profile, tokenizer = load_profile("paper", datasets=folder), load_model("smollm2-135m")[1]
    rows = []
    for section in ("evaluation", "longbench"):
        evaluator = Evaluator(profile, section=section)
        rows += [benchmark_row(evaluator, ALL_BENCHMARKS[name], tokenizer) for name in profile[section]["tasks"]]
    pages = [len(tokenizer(text, verbose=False).input_ids) for text in load_corpus("wikitext", "test", folder).texts]
    text = {"task": "wikitext", "shots": 0, "questions": len(pages), "rows_measured": len(pages)}
    text |= {"texts_per_question": 1, "tokens_per_text": sum(pages) / len(pages), "longest_text": max(pages)}
    return pd.DataFrame([*rows, text | {"answer_tokens": 0}])


def benchmark_row(evaluator: Evaluator, benchmark: Benchmark, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """How long the questions of one benchmark are."""
    counted = list(_questions(evaluator, benchmark, tokenizer))
    lengths = [length for texts, _ in counted for length in texts]
    return {
        "task": benchmark.name,
        "shots": evaluator.settings["tasks"][benchmark.name].get("shots", 0),
        "questions": _questions_asked(benchmark),
        "rows_measured": len(counted),
        "texts_per_question": len(lengths) / len(counted),
        "tokens_per_text": sum(lengths) / len(lengths),
        "longest_text": max(lengths),
        "answer_tokens": max(answer for _, answer in counted),
    }


def _questions_asked(benchmark: Benchmark) -> int:
    if benchmark.name in LONGBENCH:
        return LONGBENCH_QUESTIONS.get(benchmark.name, 200)
    if benchmark.name == "mmlu":
        return MMLU_QUESTIONS
    documents = published("dataset_statistics").query("metric == 'documents'").set_index("task")["value"]
    return int(documents[benchmark.title])


def _questions(
    evaluator: Evaluator, benchmark: Benchmark, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[list[int], int]]:
    """Tokens of each text that the model reads for a question, and of the answer at most."""
    with _quiet_lm_eval():
        for task in evaluator._load(benchmark)["tasks"].values():
            task.set_fewshot_seed(evaluator.inputs(benchmark)["shots_seed"])
            task.build_all_requests(rank=0, world_size=1)
            by_question: dict[int, list[Instance]] = {}
            for request in task.instances:
                by_question.setdefault(request.doc_id, []).append(request)
            for requests in by_question.values():
                if benchmark.choices:
                    yield _chosen(requests, tokenizer), 0
                else:
                    (request,) = requests
                    limit = request.args[1].get("max_gen_toks", DEFAULT_ANSWER)
                    if benchmark.name in LONGBENCH:
                        request = longbench.official_request(request, tokenizer, evaluator.settings["context"])
                    yield [len(tokenizer(request.args[0]).input_ids)], limit


def _chosen(requests: list[Instance], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Lengths of the texts of a question with choices: lm-eval reads once what differs in its last token only."""
    lengths = {}
    for request in requests:
        ids = tokenizer("".join(request.args)).input_ids
        lengths[tuple(ids[:-1])] = len(ids) - 1  # the last token is predicted, not read
    return list(lengths.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Count how long the questions of the paper profile are.")
    parser.add_argument("folder", help="real rows, as --datasets takes them")
    measure(parser.parse_args().folder).to_csv(Path(__file__).parent / "question_tokens.csv", index=False)
