"""What a run would do, as a table: ``./run_all.sh --dry-run``."""

from collections.abc import Mapping

from tabulate import tabulate

from harp_lib.graph import Job


def show(jobs: Mapping[str, Job]) -> str:
    """Each job with its reason, the cells that it would compute, of how many, and what they should take."""
    rows = [
        [name, job.why, f"{len(job.missing)} of {len(job.cells)}" if job.cells else "", duration(job.seconds)]
        for name, job in jobs.items()
    ]
    headers = ["job", "why", "cells to compute", "estimate"]
    table = tabulate(rows, headers, disable_numparse=True, colalign=("left", "left", "right", "right"))
    return f"{table}\n\n{_total(jobs)}\nNothing was run."


def _total(jobs: Mapping[str, Job]) -> str:
    missing = {cell for job in jobs.values() for cell in job.missing}
    cells = {cell for job in jobs.values() for cell in job.cells}
    known = [job.seconds for job in jobs.values() if job.seconds is not None]
    unknown = sum(job.seconds is None for job in jobs.values())
    text = f"{len(jobs)} jobs, {len(missing)} of {len(cells)} cells to compute"
    if len(known) > 1 and sum(known):
        text += f", {duration(sum(known))} in all if one follows the other"
    return text + (f"; without {unknown} of the jobs, of which that is not known" if unknown else "")


def duration(seconds: float | None) -> str:
    """Seconds in the unit that suits them."""
    if seconds is None:
        return "unknown"
    if seconds < 1:
        return ""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
