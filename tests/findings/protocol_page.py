"""Numbers of the protocol that no table shows."""

import json

import pandas as pd

from findings.stored import CODER, GEMMA, LARGER, all_right_answers, finding
from harp_lib import config
from harp_lib.names import BASELINES
from harp_lib.report import comparisons, data, right_answers
from harp_lib.report.scores import FLAPPED, of_kind
from harp_lib.results import rows_of

BBH = "bbh_cot_fewshot"
WITHOUT_BBH = [task for task in of_kind("generation") if task != BBH]


@finding(
    "docs/protocol.md",
    "lm-eval's filter takes all of that line for the answer, so none of the {} answers that it "
    "finds in {} replies is right (the cell is in `data/left_out`).",
)
def bbh_of_the_larger_model():
    folder = config.DATA / "left_out" / "small" / "main_tables" / LARGER / "dense"
    cell = json.loads((folder / "bbh_cot_fewshot.json").read_bytes())
    scores = data.answered(cell["result"])
    assert sum(scores) == 0
    return int(sum(data.answered(cell["result"], "answered"))), len(scores)


def searched(store: str) -> pd.DataFrame:
    """The alphas and the candidates' perplexities of a search on WikiText-2 of the 1.5B."""
    cell = data.cells("small", store)[LARGER, "harp", "search-wikitext"]
    return rows_of(cell["result"])


@finding(
    "docs/protocol.md",
    "two searches of the same candidate on the same text gave a perplexity of {:.3f} and of {:.3f}",
)
def a_candidate_in_bfloat16():
    perplexities = []
    for store in ("alpha_search", "frontier"):
        rows = searched(store)
        candidate = (rows["quantity"] == "perplexity") & (rows["alpha"] == 0)
        perplexities.append(rows[candidate].set_index("layer")["value"][27])
    return perplexities


@finding(
    "docs/protocol.md",
    "The two searches chose α that differ by {:.1f} in two of the six layers",
)
def alphas_in_bfloat16():
    alphas = []
    for store in ("alpha_search", "frontier"):
        rows = searched(store)
        alphas.append(rows[rows["quantity"] == "alpha"].set_index("layer")["value"])
    distances = (alphas[0] - alphas[1]).dropna().abs().round(6)
    differing = distances[distances > 0]
    assert (len(differing), len(distances)) == (2, 6)
    assert (differing == differing.iloc[0]).all()
    return [differing.iloc[0]]


def likelier(model: str, method: str, other: str, tasks: list[str]) -> comparisons.Interval:
    """How much likelier a method finds right answers than another (nats, or bits per byte)."""
    answers = all_right_answers()
    answers = answers[answers["model"] == model]
    pairs = []
    for task in tasks:
        both = right_answers.paired(answers, task, [method, other])
        sign = right_answers.measure_of(task).sign
        pairs.append((sign * both[method], sign * both[other]))
    return comparisons.paired_mean_difference(pairs)


@finding(
    "docs/protocol.md",
    "For {} of {} answers the dense Qwen 0.5B needs less than half a bit per byte, and for {} of {}"
    " the dense Qwen 1.5B. For the others they need {:.2f} and {:.2f} bits on average, mostly "
    "because their reasoning has led them to another answer. Of the {} answers that the dense Qwen "
    "0.5B finds likely, HARP+FLAP is surer than every baseline: it adds {:.2f} bits per byte, and "
    "they add {:.2f} to {:.2f}; the closest one needs {:.2f} [{:.2f}, {:.2f}] more. On Qwen 1.5B it"
    " adds {:.2f} bits on {} such answers, and the baselines {:.2f} to {:.2f}; the closest one "
    "needs {:.2f} [{:.2f}, {:.2f}] more. So HARP's model still goes where the reasoning leads, and "
    "theirs hesitate. On the remaining {} answers of Qwen 0.5B the best baseline needs {:.2f} "
    "[{:.2f}, {:.2f}] bits fewer than HARP+FLAP, and on the remaining {} of Qwen 1.5B {:.2f} "
    "[{:.2f}, {:.2f}], probably because a model that hesitates loses less by a wrong conclusion. On"
    " Gemma neither difference is shown. So BBH widens the gap on Qwen 1.5B: without it HARP+FLAP "
    "is {:.3f} [{:.3f}, {:.3f}] behind Wanda-sp.",
)
def conclusions_of_bbh():
    coder = BbhAnswers(CODER)
    larger = BbhAnswers(LARGER)
    gemma = BbhAnswers(GEMMA)
    numbers = []
    for bbh in (coder, larger):
        numbers += [bbh.is_sure.sum(), len(bbh.bits)]
    numbers += [bbh.bits["dense"][~bbh.is_sure].mean() for bbh in (coder, larger)]
    numbers += [coder.is_sure.sum(), *coder.added_where_sure()]
    ours, *others = larger.added_where_sure()
    numbers += [ours, larger.is_sure.sum(), *others]
    for bbh in (coder, larger):
        best = min(bbh.leads(~bbh.is_sure))
        assert best.high < 0
        numbers += [(~bbh.is_sure).sum(), -best.value, -best.high, -best.low]
    of_shared_plan = gemma.leads(gemma.is_sure)[0], gemma.leads(~gemma.is_sure)[0]
    assert all(lead.low < 0 < lead.high for lead in of_shared_plan)
    return *numbers, *likelier(LARGER, "wanda-sp", FLAPPED, WITHOUT_BBH)[:3]


class BbhAnswers:
    """Bits per byte of a model's answers to BBH, question × method."""

    def __init__(self, model: str) -> None:
        answers = all_right_answers()
        answers = answers[answers["model"] == model]
        self.bits = right_answers.paired(answers, BBH, ["dense", FLAPPED, *BASELINES])
        self.is_sure = self.bits["dense"] < 0.5  # the dense model's reasoning led to the answer

    def added_where_sure(self) -> tuple[float, ...]:
        """Bits that HARP+FLAP adds, the baselines at least and at most, and the smallest lead."""
        sure = self.bits[self.is_sure]
        added = sure.sub(sure["dense"], axis=0).mean()
        of_baselines = added[list(BASELINES)]
        leads = self.leads(self.is_sure)
        assert min(lead.low for lead in leads) > 0
        return added[FLAPPED], of_baselines.min(), of_baselines.max(), *min(leads)[:3]

    def leads(self, is_meant: pd.Series) -> list[comparisons.Interval]:
        """How many fewer bits HARP+FLAP needs than each baseline on some of the questions."""
        some = self.bits[is_meant]
        return [
            comparisons.paired_mean_difference([(some[rival], some[FLAPPED])])
            for rival in BASELINES
        ]
