"""Pruning plans: what they accept, and what they write and read."""

import json
import math

import numpy as np
import pytest

from harp_lib import PruningPlan
from harp_lib.pruning.plan import LayerPlan


def test_alphas_by_position_and_by_layer():
    plan = PruningPlan.value_only(num_layers=30, alphas=[0.8, 0.2, 0.0])
    assert plan.alphas == {27: 0.0, 28: 0.2, 29: 0.8}, "from the top"
    plan = PruningPlan.value_only(num_layers=30, alphas={24: 0.3, 0: 1.0})
    assert plan.alphas == {0: 1.0, 24: 0.3}
    plan = PruningPlan.value_only(np.int64(6), {np.int64(5): np.float32(0.5)})
    assert plan == PruningPlan.value_only(6, [0.5]), "numbers of numpy are numbers"
    assert plan.digest == PruningPlan.value_only(6, (alpha for alpha in [0.5])).digest


@pytest.mark.parametrize(
    ("alphas", "message"),
    [
        ({6: 0.5}, "layer 6 is not in a model of 6 layers"),
        ({-1: 0.5}, "layer -1"),
        ([0.1] * 7, "layer -1 is not in a model of 6 layers"),
        ({3: math.nan}, "alpha is nan"),
        ({4.7: 0.5}, "layer 4.7"),
    ],
)
def test_bad_plans_are_refused(alphas, message):
    with pytest.raises(ValueError, match=message):
        PruningPlan.value_only(6, alphas)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"format": "harp-plan/1"}',
        '{"format": "harp-plan/9", "layers": []}',
        '{"format": "harp-plan/1", "method": "harp", "num_layers": "4", "layers": []}',
        '{"format": "harp-plan/1", "method": "harp", "num_layers": 4, "layers": [{"layer": 3, '
        '"alpha": 0.5}, {"layer": 3, "alpha": 1.0}]}',
    ],
)
def test_a_file_that_is_no_plan_is_named(tmp_path, content):
    file = tmp_path / "plan.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"plan\.json"):
        PruningPlan.from_json(file)


def test_plans_round_trip_and_write_only_fields_that_are_not_empty(tmp_path):
    layer_plan = LayerPlan(
        removed_groups=(0, 2), group_means=(0.5, -1.25), removed_channels=(7,), channel_means=(0.1,)
    )
    plan = PruningPlan(4, {1: layer_plan, 3: LayerPlan(0.5, removed_channels=(1,))}, "flap")
    plan.to_json(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    again = PruningPlan.from_json(tmp_path / "plan.json")
    assert again == plan
    assert again.digest == plan.digest
    assert json.loads(text)["layers"][1] == {"layer": 3, "alpha": 0.5, "removed_channels": [1]}
    assert len(text.splitlines()) == 4, "one layer a line"
    assert plan.alphas == {3: 0.5}
    assert PruningPlan(4, {1: layer_plan}, "flap").digest != plan.digest
    whole_number = PruningPlan(4, {3: LayerPlan(alpha=1)})
    assert whole_number.digest == PruningPlan.value_only(4, [1]).digest


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"removed_groups": (1, 0)},
            "removed_groups has to be indices from 0, rising, each once; got",
        ),
        ({"removed_channels": (2, 2)}, "removed_channels has to be indices from 0, rising"),
        ({"removed_groups": (-1,)}, "removed_groups has to be indices from 0"),
        ({"alpha": 0.5, "removed_groups": (0,)}, "value-only layer"),
        ({"removed_groups": (0, 1), "group_means": (0.5,)}, "equally many for each of 2 removed"),
        ({"removed_channels": (0,), "channel_means": (math.nan,)}, "finite"),
        ({"channel_means": (0.5,)}, "each of 0 removed"),
    ],
)
def test_bad_layer_plans_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        LayerPlan(**fields)
