"""The old name of :mod:`harp_lib.config`, until nobody imports it."""

import sys

from harp_lib import config

sys.modules[__name__] = config
