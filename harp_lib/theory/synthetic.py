"""The old name of :mod:`harp_lib.theory.inequalities`, until nobody imports it."""

import sys

from harp_lib.theory import inequalities

sys.modules[__name__] = inequalities
