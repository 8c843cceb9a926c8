"""The old name of :mod:`harp_lib.theory`, until nobody imports it."""

import sys

from harp_lib import theory

sys.modules[__name__] = theory
