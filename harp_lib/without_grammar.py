"""Imported before nbformat, it keeps a grammar from being compiled at each start of a process.

jsonschema, by which nbformat checks notebooks, imports rfc3987_syntax to check addresses. That
takes longer than all else that ``harp_lib.jobs`` imports, and notebooks have no address to check.
"""

import sys

sys.modules.setdefault("rfc3987_syntax", None)  # then importing it fails, which jsonschema expects
