"""Sixteen LongBench tasks in small: four rows each, with contexts of 1,500 to 3,000 tokens of SmolLM2's tokenizer.

All texts are put together from templates and word lists of our own. The profile ``mini`` cuts the middle out of each
prompt, to 768 tokens. Therefore what decides the answer stands in the first or the last 190 words of the context (about
250 tokens), in one row of each task in its middle, where the cut removes it. In triviaqa and samsum it always stands in
``question``, at the end of the prompt, which is never cut; the middle row differs only in which example tells of the
same kind of thing.
"""

import random
from collections.abc import Callable
from functools import partial

import generate_longbench_articles as articles
import generate_longbench_code as code
import generate_longbench_facts as facts
import generate_longbench_fewshot as fewshot
import generate_longbench_reports as reports
import generate_longbench_stories as stories

Maker = Callable[[random.Random, int, str], facts.Row]  # of a row's number and where its decisive part stands
TASKS: dict[str, Maker] = {
    "narrativeqa": stories.narrativeqa,
    "qasper": articles.qasper,
    "multifieldqa_en": stories.multifieldqa_en,
    **{name: partial(facts.multi_hop, name) for name in ("hotpotqa", "2wikimqa", "musique")},
    "gov_report": articles.gov_report,
    "qmsum": reports.qmsum,
    "multi_news": reports.multi_news,
    "trec": fewshot.trec,
    "triviaqa": fewshot.triviaqa,
    "samsum": fewshot.samsum,
    "passage_count": facts.passage_count,
    "passage_retrieval_en": facts.passage_retrieval_en,
    "lcc": code.lcc,
    "repobench-p": code.repobench_p,
}


def rows(rng: random.Random, name: str) -> dict[str, list[dict]]:
    """Four test rows in the schema of the real ones; ``length`` counts the words of context and question."""
    places = ["start", "end", rng.choice(["start", "end"]), "middle"]
    rng.shuffle(places)
    made = []
    for number, where in enumerate(places):
        context, question, answers = TASKS[name](rng, number, where)
        made.append(
            {
                "question": question,
                "context": context,
                "answers": answers,
                "length": len(f"{context} {question}".split()),
                "dataset": name,
                "language": "en",
                "all_classes": fewshot.classes() if name == "trec" else None,
                "_id": f"{name}-{number}",
            }
        )
    return {"test": made}
