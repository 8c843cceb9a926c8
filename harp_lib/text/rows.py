"""Rows of a JSONL file, checked."""

import json
from pathlib import Path
from typing import Any


def read_rows(file: Path, fields: list[str], title: str) -> list[dict[str, Any]]:
    """The rows of a JSONL file; ValueError, with file and line, at the first that is not JSON or
    lacks a field.
    """
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: not JSON ({error})") from error
        for field in fields:
            value = rows[-1]
            for part in field.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is None:
                raise ValueError(
                    f"{file}, line {number}: no field {field!r}; {title} needs {', '.join(fields)}"
                )
    return rows
