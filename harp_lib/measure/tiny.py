"""The old name of :mod:`harp_lib.measure.registry`, until nobody imports it."""

import sys

from harp_lib.measure import registry

sys.modules[__name__] = registry
