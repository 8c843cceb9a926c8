"""Claims and verdicts of notebook 00: every claim is decided by rows that exist, and the verdicts follow them."""

import json
import shutil

import pandas as pd
import pytest

from harp_lib import paper_claims, paper_claims_figures, paths
from harp_lib.measure.corpora import TITLES
from harp_lib.paper_claims import (
    MEASUREMENT,
    NOT,
    NOT_RUN,
    OUTCOMES,
    OWN,
    PARTLY,
    PRINT,
    REFERENCE,
    REPRODUCED,
    SMALL,
    Stored,
    judge,
    load_claims,
    meaning,
    over_models,
    read_stored,
    together,
    verdict_rows,
)
from harp_lib.paper_claims_tables import (
    HEADLINES,
    all_cells,
    answer,
    headlines,
    provenance,
    read_disagreements,
    read_models,
    read_print,
    read_untold,
)
from harp_lib.profiles import load_profile

PYTHON, SCIPY = TITLES["python-docs"], TITLES["scipy-docs"]
CLAIMS = load_claims()


@pytest.fixture(scope="module", autouse=True)
def reference():
    """The committed reference run, whatever this checkout has computed; its verdict tables are computed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "RESULTS", paths.DATA / "none")
        stored = read_stored("mini")
        for name, verdict in list(paper_claims.VERDICTS.items()):
            table = verdict(stored[name].cells)
            patch.setitem(paper_claims.VERDICTS, name, lambda cells, table=table: table)
        yield stored


@pytest.fixture(scope="module")
def rows(reference):
    return {name: verdict_rows(name, found.cells) for name, found in reference.items()} | {
        PRINT: verdict_rows(PRINT, {})
    }


class TestClaims:
    def test_they_are_complete_and_unique(self):
        for name in ("id", "label", "number"):
            values = [getattr(claim, name) for claim in CLAIMS]
            assert name == "number" or len(set(values)) == len(values), name
        assert all(all(claim._replace(shows=claim.shows or "nothing")) for claim in CLAIMS), "no other field is empty"
        assert all(claim.statement.endswith((".", ".)")) and claim.rule.endswith(".") for claim in CLAIMS)

    def test_every_experiment_decides_some(self):
        assert {claim.experiment for claim in CLAIMS} == {*paper_claims.VERDICTS, PRINT}

    def test_what_needs_no_model_is_called_so(self, rows):
        assert {claim.by for claim in CLAIMS} == {MEASUREMENT, "proof", "counting", "print"}
        model = rows["efficiency"]["model"].iloc[0]
        for claim in CLAIMS:
            table = rows[claim.experiment]
            about = set(table.loc[table["claim"].isin(claim.rows), "model"])
            assert (model in about) == (claim.by == MEASUREMENT), claim.id

    @pytest.mark.parametrize("claim", CLAIMS, ids=[claim.id for claim in CLAIMS])
    def test_the_deciding_rows_exist(self, claim, rows):
        assert set(claim.rows) <= set(rows[claim.experiment]["claim"])
        assert list(paths.NOTEBOOKS.glob(f"{claim.notebook}_*.ipynb"))
        if claim.shows or claim.by == MEASUREMENT:
            assert list((paths.FIGURES / "mini").glob(claim.shows.format(model="*"))), claim.shows

    def test_every_check_of_the_print_is_used(self, rows):
        assert set(rows[PRINT]["claim"]) == {row for claim in CLAIMS if claim.experiment == PRINT for row in claim.rows}


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        ("holds", REPRODUCED),
        ("holds, with the same α", REPRODUCED),
        ("holds: costs less than α = 1", REPRODUCED),
        ("holds for 3 of 4", PARTLY),
        ("holds for only 7% of the layers", NOT),
        ("holds if the rows stay away from zero", PARTLY),
        ("possible only if λ < 1 in every head", NOT),
        ("in part: 50% of the deviation is gone", PARTLY),
        ("does not hold: no clear trend", NOT),
        ("does not hold: later, because the FFN has three matrices; never within the model's context", NOT),
        ("at the floor", SMALL),
        ("not judged", SMALL),
        ("missing", NOT_RUN),
        (f"{PYTHON}: does not hold; {SCIPY}: too small to tell", NOT),
        (f"{PYTHON}: holds; {SCIPY}: too small to tell", SMALL),
        (f"{PYTHON}: holds; {SCIPY}: does not hold", NOT),
    ],
)
def test_what_a_verdict_means(verdict, expected):
    assert meaning(verdict) == expected


def test_every_verdict_of_the_notebooks_has_a_meaning(rows):
    assert {meaning(verdict) for table in rows.values() for verdict in table["verdict"]} <= set(OUTCOMES)
    with pytest.raises(ValueError, match="unknown verdict 'perhaps'"):
        meaning("perhaps")


def test_a_claim_is_as_strong_as_its_weakest_part():
    assert together([REPRODUCED, REPRODUCED]) == REPRODUCED
    assert together([REPRODUCED, PARTLY]) == PARTLY
    assert together([PARTLY, SMALL]) == SMALL
    assert together([SMALL, NOT_RUN, NOT]) == NOT


def test_several_models():
    assert over_models({"a": NOT, "b": NOT}) == (NOT, NOT)
    assert over_models({"a": REPRODUCED, "b": SMALL, "c": REPRODUCED}) == (PARTLY, "reproduced for 2 of 3 models")
    assert over_models({"a": SMALL, "b": NOT}) == (NOT, "not reproduced (1 of 2 models)")


class TestReference:
    def test_every_claim_is_judged(self, reference):
        judged = judge("mini", reference)
        assert set(judged["outcome"]) <= set(OUTCOMES) - {NOT_RUN}
        assert {found.source for found in reference.values()} == {REFERENCE}
        assert list(judged["id"]) == [claim.id for claim in CLAIMS]
        assert not judged[["evidence", "verdict"]].eq("").any(axis=None)
        assert list(judged["figure"] == "") == [not claim.shows for claim in CLAIMS]
        verdicts = judged.set_index("id")["outcome"]
        assert verdicts["pruning-ratios"] == REPRODUCED, "the same in every run: counted from configs"
        assert verdicts["proposition-1"] == verdicts["sixteen-percent"] == verdicts["overtaking-counted"] == NOT
        assert verdicts["ffn-ratios"] == PARTLY
        assert verdicts["theorem-1"] == NOT, "its converse has a counterexample that no condition removes"
        assert set(verdicts[["lemma-1", "lemma-2", "lemma-3"]]) == {PARTLY}, "under a condition that is not printed"
        assert judged.set_index("id").loc["lemma-1", "evidence"].startswith("2 of 4 findings hold · ")
        assert verdicts["generation-each-printed"] == verdicts["longbench-most-printed"] == PARTLY
        assert verdicts["mmlu-questions"] == NOT

    def test_each_row_matters(self, reference, rows, monkeypatch):
        """A claim of several rows fails with any one of them, and nothing else changes."""
        judged = judge("mini", reference).set_index("id")
        claim = next(claim for claim in CLAIMS if claim.id == "top-layers")
        assert judged.loc[claim.id, "outcome"] == REPRODUCED
        for row in claim.rows:
            broken = rows["ablations"].assign(
                verdict=rows["ablations"]["verdict"].where(rows["ablations"]["claim"] != row, "does not hold")
            )
            monkeypatch.setitem(paper_claims.VERDICTS, "ablations", lambda cells, broken=broken: broken)
            again = judge("mini", reference).set_index("id")
            assert again.loc[claim.id, "outcome"] == NOT
            assert row in again.loc[claim.id, "evidence"]
            assert "2 of 3 findings hold" in again.loc[claim.id, "evidence"]
            assert (again["outcome"] != judged["outcome"]).sum() == 1

    def test_the_words_follow_the_verdicts(self, reference):
        judged = judge("mini", reference)
        said = read_disagreements(judged) + read_print(judged) + read_untold(judged)
        for claim in judged.to_dict("records"):
            assert (claim["statement"] in said) == (claim["outcome"] != REPRODUCED), claim["id"]
        assert len(list(headlines(judged))) == 5
        assert all(picture.is_file() for picture, _ in headlines(judged))
        assert "random" not in read_models(reference).casefold()
        turned = judged.assign(outcome=REPRODUCED, verdict=REPRODUCED)
        assert read_disagreements(turned) == read_print(turned) == "There are none."
        assert f"{len(judged)} reproduced" in answer(turned)

    def test_the_main_claims_are_the_papers_own(self):
        assert not [claim.id for claim in CLAIMS if claim.id in HEADLINES and "(our measure)" in claim.label]

    def test_seeds_and_data_are_those_of_the_cells(self, reference):
        """Whatever the parameters of the notebook that only reads them."""
        cells = all_cells(reference)
        table = provenance(cells, load_profile("mini") | {"datasets": "hub"}, 7, 1.0).set_index("what")["value"]
        assert (table["datasets"], table["seed"], table["profile"]) == ("embedded", "0", "mini")
        cells = {key: {**cell, "inputs": {"source": "a-folder"}} for key, cell in cells.items()}
        table = provenance(cells, load_profile("mini"), 7, 1.0).set_index("what")["value"]
        assert (table["datasets"], table["seed"]) == ("a-folder", "not recorded")

    def test_the_figure_has_a_mark_for_each(self, reference):
        judged = judge("mini", reference)
        figure = paper_claims_figures.verdicts(judged, "a model")
        marks = [line.get_marker() for axis in figure.axes for line in axis.lines]
        assert marks == [paper_claims_figures.MARKS[outcome]["marker"] for outcome in judged["outcome"]]
        shown = [text.get_text() for axis in figure.axes for text in axis.texts]
        assert set(judged["label"]) <= set(shown)
        looks = {(look["marker"], look["color"], look.get("fillstyle")) for look in paper_claims_figures.MARKS.values()}
        assert len(looks) == len(OUTCOMES)


class TestMissing:
    @pytest.fixture
    def results(self, tmp_path, monkeypatch):
        """A checkout that has computed one experiment, and no reference."""
        folder = tmp_path / "mini" / "efficiency"
        shutil.copytree(paths.REFERENCE / "mini" / "efficiency", folder)
        monkeypatch.setattr(paths, "RESULTS", tmp_path)
        monkeypatch.setattr(paths, "REFERENCE", tmp_path / "none")
        return folder

    def test_what_has_not_run_is_not_run(self, results):
        stored = read_stored("mini")
        judged = judge("mini", stored).set_index("id")
        assert stored["efficiency"].source == OWN
        assert judged.loc["cache", "outcome"] != NOT_RUN
        assert judged.loc["alpha-beats-one", ["outcome", "verdict"]].tolist() == [NOT_RUN, NOT_RUN]
        assert "no stored results of alpha_search" in judged.loc["alpha-beats-one", "evidence"]
        assert judged.loc["search-cost", "outcome"] == NOT, "the print needs no run"
        assert "no stored results of alpha_search" in read_untold(judged.reset_index())

    def test_nothing_at_all(self):
        judged = judge("mini", {name: Stored({}, "nowhere", "never run") for name in paper_claims.VERDICTS})
        by_print = {claim.id for claim in CLAIMS if claim.experiment == PRINT}
        assert set(judged.loc[judged["outcome"] != NOT_RUN, "id"]) == by_print
        assert paper_claims_figures.verdicts(judged, "no model")

    def test_an_unfinished_run_is_not_replaced_by_the_reference(self, results, monkeypatch):
        monkeypatch.setattr(paths, "REFERENCE", paths.DATA / "reference")
        cell = next(file for file in results.rglob("*.json") if file.name != "run.json")
        stored = json.loads(cell.read_text())
        cell.write_text(json.dumps(stored | {"inputs": stored["inputs"] | {"seed": -1}}))
        assert read_stored("mini")["efficiency"].source == OWN
        judged = judge("mini", read_stored("mini")).set_index("id")
        assert judged.loc["cache", "outcome"] == NOT_RUN
        assert "gone or of an unfinished run" in judged.loc["cache", "evidence"]
        assert judged.loc["top-layers", "outcome"] != NOT_RUN

    @pytest.mark.filterwarnings("ignore:.*could not be read; moved to")
    @pytest.mark.parametrize("name", ["run.json", "*/*/*.json"])
    def test_a_truncated_file(self, results, name):
        file = next(results.glob(name))
        file.write_text(file.read_text()[:100])
        judged = judge("mini", read_stored("mini")).set_index("id")
        assert judged.loc["cache", "outcome"] == NOT_RUN
        assert judged.loc["cache", "evidence"]

    def test_a_row_that_is_not_there(self, reference, rows, monkeypatch):
        """A model without a score on a task has no row for it: the claim has not been tested."""
        table = rows["main_tables"]
        part = table[~table["claim"].str.contains("TriviaQA, as many|discriminative")]
        monkeypatch.setitem(paper_claims.VERDICTS, "main_tables", lambda cells: part)
        judged = judge("mini", reference).set_index("id")
        assert judged.loc["discriminative-parameters", "outcome"] == NOT_RUN
        assert judged.loc["generation-each", "outcome"] == NOT_RUN
        assert "nothing is stored on “HARP+FLAP scores highest on TriviaQA" in judged.loc["generation-each", "evidence"]


def test_verdict_rows_name_the_model_and_the_text(monkeypatch):
    """A name may be the beginning of another one."""
    said = ["base-large, two texts", "base", "the paper's four"]
    table = pd.DataFrame({"what was checked": "a claim", "on what": said, "evidence": "", "verdict": "holds"})
    monkeypatch.setitem(paper_claims.VERDICTS, "similarity", lambda cells: table)
    cells = {("owner/base", "dense", "task"): {}, ("owner/base-large", "dense", "task"): {}}
    rows = verdict_rows("similarity", cells)
    assert rows["model"].tolist() == ["base-large", "base", "the paper's four"]
    assert rows["text"].tolist() == ["two texts", "", ""]
