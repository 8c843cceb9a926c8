"""The old name of :mod:`harp_lib.measure.text`, until nobody imports it."""

import sys

from harp_lib.measure import text

sys.modules[__name__] = text
