"""Stored cells as one long frame: coordinates are columns, and names of cells are only names."""

import ast
import math

import pytest
from helpers import CHECKOUT

from harp_lib import config
from harp_lib.experiments import UNITS
from harp_lib.report import data
from harp_lib.report.data import Missing, Source, cells

STORES = dict.fromkeys(unit.store for unit in UNITS.values())
QUESTIONS = ("main_tables", "longbench", "likelihoods")  # a row of these is of a question
MODEL = "smollm2-135m"


@pytest.fixture(autouse=True)
def reference(tmp_path, monkeypatch):
    """The committed reference, whatever this checkout has computed."""
    monkeypatch.setattr(config, "RESULTS", tmp_path)


def records_of(stored):
    """Rows of cells as a loop over their columns has them, with key and coordinates."""
    records = []
    for (model, method, task), cell in stored.items():
        columns = cell["result"].get("rows", {})
        for values in zip(*columns.values(), strict=True):
            record = {"model": model, "method": method, "task": task}
            record.update(cell["coordinates"])
            record.update(zip(columns, values, strict=True))
            records.append(record)
    return records


def without_missing(record):
    """A record without the columns that it has no value in."""
    values = {}
    for name, value in record.items():
        is_nan = isinstance(value, float) and math.isnan(value)
        if value is not None and not is_nan:
            values[name] = value
    return values


def frame_records(frame):
    return [without_missing(record) for record in frame.to_dict("records")]


# Rows of a store


@pytest.mark.parametrize("store", STORES)
def test_rows_of_a_store_are_those_of_its_cells_beneath_each_other(store):
    stored = cells("mini", store)
    expected = [without_missing(record) for record in records_of(stored)]
    assert len(expected) > 0
    assert frame_records(data.rows(stored)) == expected


def cell_of(rows, **coordinates):
    return {"coordinates": coordinates, "inputs": {}, "result": {"rows": rows}}


def test_a_coordinate_replaces_a_column_of_the_key():
    stored = {
        ("m", "harp-06", "wikitext-test"): cell_of(
            {"value": [1.0, 2.0]}, method="harp", layers=6, corpus="wikitext"
        ),
        ("m", "dense", "wikitext-test"): cell_of({"value": [3.0]}, corpus="wikitext"),
    }
    frame = data.rows(stored)
    assert list(frame) == ["model", "method", "task", "layers", "corpus", "value"]
    assert frame["method"].tolist() == ["harp", "harp", "dense"]
    assert frame["layers"].tolist()[:2] == [6, 6]
    assert frame["layers"].isna().tolist() == [False, False, True]
    assert frame["value"].tolist() == [1.0, 2.0, 3.0]
    assert frame.index.tolist() == [0, 1, 2]


def test_a_column_of_the_rows_replaces_a_coordinate():
    """A cell of a whole document may hold rows of others."""
    stored = {("m", "harp", "t"): cell_of({"document": [4, 5], "value": [1, 2]}, document=0)}
    assert data.rows(stored)["document"].tolist() == [4, 5]


def test_cells_without_rows_are_left_out():
    stored = {
        ("m", "dense", "plan"): {"coordinates": {}, "result": {"plan": None}},
        ("m", "harp", "piqa"): {"coordinates": {}, "result": {"failed": "out of memory"}},
        ("m", "flap", "piqa"): cell_of({}),
        ("m", "mag-sp", "piqa"): cell_of({"value": [1]}),
    }
    assert data.rows(stored)["method"].tolist() == ["mag-sp"]
    assert list(data.rows({})) == data.KEY


# Quantities


def test_quantities_come_without_columns_that_they_do_not_have():
    stored = {
        ("m", "harp", "search"): cell_of(
            {
                "quantity": ["alpha", "perplexity", "seconds"],
                "layer": [5, 5, None],
                "alpha": [None, 0.5, None],
                "value": [0.5, 7.25, 3],
            },
            corpus="wikitext",
        )
    }
    rows = data.rows(stored)
    key = [*data.KEY, "quantity", "corpus"]
    assert list(data.of_quantities(rows, "seconds")) == [*key, "value"]
    assert list(data.of_quantities(rows, "alpha")) == [*key, "layer", "value"]
    both = data.of_quantities(rows, "perplexity", "alpha")
    assert list(both) == [*key, "layer", "alpha", "value"]
    assert both["quantity"].tolist() == ["alpha", "perplexity"], "in the order of the rows"
    assert both["layer"].dtype == int
    assert both["alpha"].isna().tolist() == [True, False]
    assert data.of_quantities(rows, "nll").empty


def test_quantities_by_layer_and_head_as_a_loop_has_them():
    frame = data.tidy("mini", "similarity", "entropy")
    frame = frame.query("method == 'trained' and task == 'python-docs'")
    key = (MODEL, "trained", "python-docs")
    stored = {key: cells("mini", "similarity")[key]}
    expected = {}
    for record in records_of(stored):
        if record["quantity"] == "entropy":
            expected[record["document"], record["layer"], record["head"]] = record["value"]
    assert frame.set_index(["document", "layer", "head"])["value"].to_dict() == expected
    assert len(expected) == len(frame) == 270 * frame["document"].nunique()  # 30 layers, 9 heads


def test_alphas_are_the_best_candidates_of_their_search():
    frame = data.tidy("mini", "alpha_search", "alpha", "perplexity")
    frame = frame.query("method == 'harp' and corpus == 'python-docs'")
    alphas = frame[frame["quantity"] == "alpha"].set_index("layer")["value"]
    curves = frame[frame["quantity"] == "perplexity"]
    best = curves.loc[curves.groupby("layer")["value"].idxmin()].set_index("layer")["alpha"]
    assert alphas.to_dict() == best.to_dict()
    assert max(alphas.index) == 29


def test_coordinates_say_what_cells_are_about():
    likelihoods = data.tidy("mini", "alpha_search", "nll")
    assert set(likelihoods["split"]) == {"test", "validation"}
    assert set(likelihoods["corpus"]) == {"python-docs", "scipy-docs"}
    assert not likelihoods[["corpus", "split", "document"]].isna().any(axis=None)

    ablations = data.tidy("mini", "ablations", "nll")
    gain = ablations[ablations["method"] == "gain"]
    assert set(gain["document"]) == set(range(gain["document"].nunique()))
    assert set(gain["searched"]) == set(range(7)), "none, and each of the six pruned layers"
    single = ablations[ablations["method"] == "single-layer"]
    assert set(single["alpha"]) == {0.0, 1.0}
    assert set(single["layer"]) == set(range(30))
    assert set(single["num_pruned"]) == {6}

    prefill = data.tidy("mini", "efficiency", "seconds").query("kind == 'prefill'")
    assert {"length", "variant", "repetition"} <= set(prefill)

    frontier = data.tidy("mini", "frontier", "nll")
    assert frontier.loc[frontier["method"] == "dense", "layers"].eq(0).all()
    assert not frontier["layers"].isna().any()
    assert not frontier["method"].str.contains(r"\d\d").any(), "layers are a column"


OF_VALUES = [name for name in STORES if name not in ("theory", "frontier_scores", *QUESTIONS)]


@pytest.mark.parametrize("store", OF_VALUES)
def test_coordinates_tell_every_value_of_a_quantity_from_the_others(store):
    rows = data.rows(cells("mini", store))
    quantities = rows["quantity"].dropna().unique()
    frame = data.tidy("mini", store, *quantities)
    assert set(frame["quantity"]) == set(quantities)
    assert not frame["value"].isna().any()
    assert not frame.duplicated([name for name in frame if name != "value"]).any()


@pytest.mark.parametrize("store", ["alpha_search", "baselines", "efficiency", "frontier"])
def test_values_are_told_apart_without_the_name_of_their_cell(store):
    rows = data.rows(cells("mini", store))
    frame = data.tidy("mini", store, *rows["quantity"].unique())
    coordinates = [name for name in frame if name not in ("value", "task")]
    assert not frame.duplicated(coordinates).any()


# Documents


def test_documents_have_likelihood_and_tokens_side_by_side():
    frame = data.documents("mini", "baselines")
    plans = frame[frame["start"].isna()]
    assert {"corpus", "split", "document", "nll", "tokens"} <= set(frame)
    for (_, method, task), of_cell in plans.groupby(data.KEY):
        result = cells("mini", "baselines")[MODEL, method, task]["result"]
        rows = result["rows"]
        assert of_cell["document"].is_monotonic_increasing
        assert [*of_cell["nll"], *of_cell["tokens"]] == rows["value"]
    assert not frame.duplicated([*data.KEY, "document"]).any()
    assert not frame[["nll", "tokens"]].isna().any(axis=None)


def test_documents_are_left_out_that_are_no_documents():
    """A search has tokens too, of all its documents together."""
    assert "harp" in set(data.tidy("mini", "alpha_search", "tokens")["method"])
    assert "harp" not in set(data.documents("mini", "alpha_search")["method"])


def test_documents_of_nothing_are_an_empty_frame():
    frame = data.documents("none", "baselines")
    assert frame.empty
    assert {"model", "method", "task", "document", "nll", "tokens"} <= set(frame)


# Questions, tables, and one model's part of them


def test_questions_as_a_loop_has_them():
    columns = ["model", "method", "task", "subtask", "question", "score"]
    stored = cells("mini", "main_tables")
    expected = [tuple(record[name] for name in columns) for record in records_of(stored)]
    questions = data.questions(stored)
    assert list(questions[columns].itertuples(index=False, name=None)) == expected
    assert not questions.duplicated(columns[:5]).any()


def test_tables_of_the_theory():
    table = data.table("mini", "theory", "draws")
    assert {"check", "violations", "model"} <= set(table)
    rows = cells("mini", "theory")["synthetic", "theory", "draws"]["result"]["rows"]
    assert table[list(rows)].to_dict("list") == rows
    assert data.table("none", "theory", "draws").empty


def test_nothing_stored_is_an_empty_frame():
    frame = data.tidy("none", "main_tables", "alpha")
    assert frame.empty
    assert list(frame) == ["model", "method", "task", "quantity", "value"]


def test_a_source_without_cells_says_what_it_needs():
    source = Source("none", "main_tables", "m", cells)
    with pytest.raises(Missing, match="needs harp/boolq of main_tables"):
        source.result("harp", "boolq")
    with pytest.raises(Missing, match="needs alpha of harp in main_tables"):
        source.rows("alpha", method="harp")
    with pytest.raises(Missing, match="needs alpha, nll in frontier"):
        source.rows("alpha", "nll", store="frontier")
    with pytest.raises(Missing, match="needs scores of main_tables"):
        source.answers(["harp"], ["boolq"])


def test_a_source_has_the_rows_of_its_model_only():
    stored = {
        ("m", "harp", "t"): cell_of({"quantity": ["alpha"], "layer": [5], "value": [0.5]}),
        ("m", "flap", "t"): cell_of({"quantity": ["alpha"], "head": [1], "value": [0.25]}),
        ("other", "harp", "t"): cell_of({"quantity": ["alpha"], "layer": [5], "value": [0.75]}),
        ("other", "harp", "u"): cell_of({"quantity": ["nll"], "value": [9]}),
    }
    source = Source("none", "alpha_search", "m", lambda profile, store: stored)
    both = source.rows("alpha")
    assert both["value"].tolist() == [0.5, 0.25]
    harp = source.rows("alpha", method="harp")
    assert harp["value"].tolist() == [0.5]
    assert "head" not in harp, "FLAP's column is empty here"
    with pytest.raises(Missing, match="needs nll in alpha_search"):
        source.rows("nll")


def test_answers_are_of_the_tasks_that_all_methods_have():
    answered = {"rows": {"score": [1.0]}}
    main_tables = {
        ("m", "dense", "boolq"): {"result": answered},
        ("m", "dense", "piqa"): {"result": answered},
        ("m", "harp", "boolq"): {"result": {"failed": "out of memory"}},
        ("m", "harp", "piqa"): {"result": answered},
    }
    stores = {"main_tables": main_tables, "ablations": {}}
    # The ablations read scores of the main tables.
    source = Source("none", "ablations", "m", lambda profile, store: stores[store])
    assert list(source.answers(["harp"], ["boolq", "piqa"])) == ["piqa"]


# Names of cells are never parsed

PARSING = {
    *("split", "rsplit", "partition", "rpartition", "removeprefix", "removesuffix"),
    *("startswith", "endswith", "replace", "extract", "contains", "match", "fullmatch"),
    *("search", "findall", "sub", "slice"),
}
"""Methods of text, of ``re`` and of ``Series.str`` that take text apart."""


def holds_a_name(expression):
    """Whether a variable ``task`` or ``name``, or a column ``task``, is part of an expression."""
    for part in ast.walk(expression):
        if isinstance(part, ast.Name) and part.id in ("task", "name"):
            return True
        if isinstance(part, ast.Constant) and part.value == "task":
            return True
        if isinstance(part, ast.Attribute) and part.attr == "task":
            return True
    return False


def parsed_names(code):
    """Calls in some code that take a task or a name apart."""
    calls = []
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in PARSING:
            continue
        if any(isinstance(argument, ast.Dict) for argument in node.args):
            continue  # a frame's replace
        # The text: before the dot, or an argument of a function of re.
        expressions = [node.func.value]
        if ast.unparse(node.func.value) == "re":
            expressions = node.args
        if any(holds_a_name(expression) for expression in expressions):
            calls.append(ast.unparse(node))
    return calls


@pytest.mark.parametrize("room", ["report", "experiments"])
def test_no_name_of_a_cell_is_parsed(room):
    files = sorted((CHECKOUT / "harp_lib" / room).rglob("*.py"))
    assert len(files) > 5
    for file in files:
        assert parsed_names(file.read_text(encoding="utf-8")) == [], file.name


@pytest.mark.parametrize(
    "code",
    [
        "task.split('-')",
        "corpus, _, split = task.rpartition('-')",
        "re.fullmatch(r'search-(.+)', task)",
        "frame['task'].str.replace(r'-\\d+$', '', regex=True)",
        "frame['task'].str.startswith('range-')",
        "frame.task.str.contains('range-')",
        "key.name.removeprefix('range-') if name.startswith('range-') else ''",
    ],
)
def test_a_parsed_name_is_found(code):
    assert len(parsed_names(code)) == 1


def test_comparing_names_is_not_parsing():
    assert parsed_names("frame[frame['task'] == 'piqa']") == []
    assert parsed_names("frame.replace({'task': {'piqa': 'PIQA'}})") == []
    assert parsed_names("profile['name'].split()") == []
    assert parsed_names("re.sub('a', '', rival)") == []
