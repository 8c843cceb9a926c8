"""What findings of several notebooks ask of the scores in ``main_tables``."""

from harp_lib.report import comparisons, data
from harp_lib.report.scores import of_kind

SMALL = {"name": "small"}
GENERATION = of_kind("generation")
CHOOSING = of_kind("discriminative")
WANDA = "LLM-Pruner = Wanda-sp"  # one plan on the coder


def above_chance(model: str, tasks: list[str]) -> list[str]:
    """The tasks on which the dense model is shown to be above chance."""
    above = []
    for task in tasks:
        result = data.cells("small", "main_tables")[model, "dense", task]["result"]
        dense = data.answered(result)
        if not comparisons.floor(dense, data.answered(result, "chance")):
            above.append(task)
    return above
