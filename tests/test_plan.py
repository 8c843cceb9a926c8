import json
import math

import numpy as np
import pytest

from harp_lib import PruningPlan


def test_a_sequence_is_read_from_the_top():
    plan = PruningPlan.value_only(num_layers=30, alphas=[0.8, 0.2, 0.0])
    assert plan.alphas == {27: 0.0, 28: 0.2, 29: 0.8}


def test_a_mapping_is_read_by_layer_index():
    assert PruningPlan.value_only(num_layers=30, alphas={24: 0.3, 0: 1.0}).alphas == {0: 1.0, 24: 0.3}


def test_numbers_of_numpy_are_numbers():
    plan = PruningPlan.value_only(np.int64(6), {np.int64(5): np.float32(0.5)})
    assert plan == PruningPlan.value_only(6, [0.5])
    assert plan.digest == PruningPlan.value_only(6, (alpha for alpha in [0.5])).digest


def test_round_trip_through_a_file(tmp_path):
    plan = PruningPlan.value_only(num_layers=6, alphas={5: 0.3, 0: 1})
    plan.to_json(tmp_path / "plan.json")
    again = PruningPlan.from_json(tmp_path / "plan.json")
    assert again == plan
    assert again.digest == plan.digest
    assert PruningPlan.value_only(6, {5: 0.4, 0: 1}).digest != plan.digest


@pytest.mark.parametrize(
    ("alphas", "message"),
    [
        ({6: 0.5}, "layer 6 is not in a model of 6 layers"),
        ({-1: 0.5}, "layer -1"),
        ([0.1] * 7, "7 alphas for a model of 6 layers"),
        ({3: math.nan}, "layer 3: alpha is nan"),
        ([math.inf], "layer 5: alpha is inf"),
        ({4.7: 0.5}, "layer 4.7"),
        ([None], "layer 5"),
    ],
)
def test_bad_plans_are_refused(alphas, message):
    with pytest.raises(ValueError, match=message):
        PruningPlan.value_only(6, alphas)


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"format": "harp-plan/1"}', json.dumps({"format": "harp-plan/9", "layers": []})]
)
def test_a_file_that_is_no_plan_is_named(tmp_path, content):
    file = tmp_path / "plan.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"plan\.json"):
        PruningPlan.from_json(file)
