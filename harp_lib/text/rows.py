"""Rows of a JSONL file, checked."""

import json
from pathlib import Path
from typing import Any


def read_rows(file: Path, fields: list[str], title: str) -> list[dict[str, Any]]:
    """Rows of a JSONL file, each of which has to have the given fields.

    A field such as ``answer.text`` is looked up in nested objects. A ValueError names file and line
    of the first row that is not JSON or lacks a field; ``title`` says there who needs the fields.
    """
    rows = []
    # splitlines would also split at separators that JSON allows within a string.
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: not JSON ({error})") from error
        for field in fields:
            if _value_at(row, field) is None:
                raise ValueError(
                    f"{file}, line {number}: no field {field!r}; {title} needs {', '.join(fields)}"
                )
        rows.append(row)
    return rows


def _value_at(row: Any, field: str) -> Any:
    """Value of a field with dots for nested objects, or None if the row lacks it."""
    value = row
    for key in field.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
