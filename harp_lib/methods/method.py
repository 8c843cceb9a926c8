"""What a pruning method is, in words: the rows of the table that compares them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """Properties of a pruning method (paper, Table "property"), each written beside the code that has them.

    Attributes
    ----------
    name : str
        As ``make_plan`` takes it.
    title : str
        As the paper prints it.
    colour : str
        Of the method in every figure; the project's are of seaborn's colour-blind palette.
    metric : str
        What ranks key/value groups or chooses alpha, a LaTeX formula without dollar signs.
    looks_at : str
        What the metric is computed from.
    calibration : str
        What is run over the calibration text.
    weight_update : str
        How weights that stay are changed, if they are.
    allocation : str
        How the removed groups are distributed over layers.
    """

    name: str
    title: str
    colour: str
    metric: str
    looks_at: str
    calibration: str
    weight_update: str
    allocation: str
