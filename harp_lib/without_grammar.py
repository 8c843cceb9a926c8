"""Imported before nbformat, it halves the time that a job takes to start.

jsonschema, by which nbformat checks notebooks, imports rfc3987_syntax to check addresses, and that
compiles a grammar for seconds. The schema of notebooks has no address to check.
"""

import sys

sys.modules.setdefault("rfc3987_syntax", None)  # then importing it fails, which jsonschema expects
