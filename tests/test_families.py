"""Every causal family of transformers is right, or refused by name; docs/library.md has the table.

``pytest -m release`` goes through all of them, in about fifteen minutes.
"""

import copy

import families
import pytest

from harp_lib.pruning.plan import LayerPlan, PruningPlan

pytestmark = pytest.mark.filterwarnings("ignore")


def printed_rows():
    """The table of docs/library.md: outcomes by family and column."""
    page = families.PAGE.read_text(encoding="utf-8")
    table = page.split(families.MARKS[0])[1].split(families.MARKS[1])[0]
    rows = {}
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith("| family"):
            family, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            rows[family] = dict(zip(families.COLUMNS, cells, strict=True))
    return rows


def check(family):
    """The outcomes of a family are those of its printed row, and its perplexity is right."""
    row = families.outcomes(family)
    assert row.pop("perplexity") == "yes"
    assert row == printed_rows()[family]


# One of Llama's kind, one with multipliers, one without a list of layers, one with a state-space
# part beside attention.
@pytest.mark.parametrize("family", ["llama", "granite", "bert", "falcon_h1"])
def test_rows_of_the_table(family):
    check(family)


def test_no_row_says_that_something_is_wrong():
    rows = printed_rows()
    assert len(rows) > 100
    for family, row in rows.items():
        for cell in row.values():
            assert cell, family
            assert not cell.startswith(("WRONG", "CRASH")), family


@pytest.mark.release
@pytest.mark.parametrize("family", families.all_rows())
def test_all_rows_of_the_table(family):
    try:
        families.build(family)
    except Exception as error:
        assert family not in printed_rows()
        pytest.skip(f"no tiny model: {error}")
    check(family)


def test_wrong_results_are_seen(monkeypatch):
    model = families.build("llama")
    monkeypatch.setattr(families, "perplexity", lambda model, ids: 1.0)
    assert families.outcome(families.check_perplexity, model).startswith("WRONG: perplexity 1 for")

    def prune_another_layer(model, plan):
        other = families.PruningPlan.value_only(4, {0: 0.5, 2: 0.25})
        return apply_plan(model, other)

    apply_plan = families.apply_plan
    monkeypatch.setattr(families, "apply_plan", prune_another_layer)
    assert families.outcome(families.check_harp, model).startswith("WRONG: pruned against masked")


@pytest.mark.parametrize("removed", [(0,), (0, 1)], ids=["one group", "all groups"])
def test_a_state_space_part_beside_attention_is_left_alone(removed):
    """Falcon-H1's layers have both, and one cache entry for the two."""
    model = families.build("falcon_h1")
    loss = LayerPlan(removed_groups=removed)
    masked = copy.deepcopy(model)
    for layer in (0, 3):
        families._mask(families.decoder_layers(masked)[layer].self_attn, loss)
    families.apply_plan(model, PruningPlan(4, {0: loss, 3: loss}))
    families.same(families.logits(model), families.logits(masked), "pruned against masked")
    families.check_use(model)
