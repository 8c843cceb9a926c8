"""One colour for each method, in every figure: seaborn's colour-blind palette."""

from harp_lib.methods import COLOURS

METHOD = COLOURS
HARP_ALPHA_1 = "#a9cde4"  # HARP's own, paler: alpha is left at 1
HARP_FOLDED = "#7cb518"  # HARP with the output projections of its layers folded
THINNED = "#920000"  # HARP's number of heads, taken evenly from all layers
PUBLISHED = "#949494"  # numbers of the paper, beside ours
RANDOM = "#ca9161"  # an untrained twin of a model; the trained model is the dense one
FIRST, SECOND = "#3b1f6b", "#a58ac9"  # two of anything that is neither a method nor a model
