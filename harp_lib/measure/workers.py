"""Jobs in parallel: one process for each GPU, or several on the CPU. One that dies costs its job, not the rest."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

Job = Any  # whatever the workers' function takes; it must be picklable, as the result must


def run_jobs(
    jobs: Sequence[Job], setup: Callable[..., Callable[[Job], Any]], arguments: tuple, devices: Sequence[str | None]
) -> Iterator[tuple[Job, Any, float]]:
    """Hand jobs out to one process per device, the next one to whoever is free.

    Parameters
    ----------
    jobs : sequence
        What is to be done.
    setup : callable
        Called once in each process with ``arguments``; returns the function that does a job. It lives in a module, so
        that a fresh process can import it.
    arguments : tuple
        For ``setup``.
    devices : sequence of str or None
        One process each: the number of the GPU that it sees, or None for a share of the processor's cores.

    Yields
    ------
    job, result, seconds
        As they are done. Where the process died, the result is ``{"failed": reason}``, and another takes its place.
    """
    waiting = list(reversed(jobs))
    start = (setup, arguments, len(devices))
    workers = [_Worker(device, *start) for device in devices[: len(jobs)]]
    try:
        for worker in workers:
            worker.give(waiting.pop())
        while any(worker.busy for worker in workers):
            for connection in wait([worker.connection for worker in workers if worker.busy]):
                worker = next(worker for worker in workers if worker.connection is connection)
                job = worker.job
                try:
                    result, seconds = worker.take()
                except (EOFError, ConnectionError):
                    result, seconds = {"failed": worker.end()}, 0.0
                    workers.remove(worker)
                    if waiting:
                        workers.append(_Worker(worker.device, *start))
                        workers[-1].give(waiting.pop())
                else:
                    if waiting:
                        worker.give(waiting.pop())
                yield job, result, seconds
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process, the connection to it, and the job that it has."""

    def __init__(self, device: str | None, setup: Callable, arguments: tuple, share: int) -> None:
        spawn = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        self.device, self.job, self.busy = device, None, False
        self.connection, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(theirs, device, setup, arguments, share), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, job: Job) -> None:
        self.job, self.busy = job, True
        with suppress(ConnectionError):  # it is dead: reading from it will say so
            self.connection.send(job)

    def take(self) -> tuple[Any, float]:
        done = self.connection.recv()
        self.busy = False
        return done

    def end(self) -> str:
        """Why a process is gone."""
        self.process.join()
        code = self.process.exitcode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the worker process died ({how})" + (": out of memory?" if how == "SIGKILL" else "")

    def stop(self) -> None:
        """End the process: an idle one goes by itself, one whose work is not wanted any more is killed."""
        self.connection.close()
        if not self.busy:
            self.process.join(timeout=10)
        self.process.kill()
        self.process.join()


def _serve(connection: Connection, device: str | None, setup: Callable, arguments: tuple, share: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which stops its workers
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device  # before CUDA starts in this process
    import torch

    if device is None:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // share))
    work = setup(*arguments)
    while True:
        try:
            job = connection.recv()
        except EOFError:  # the parent is gone
            return
        begin = time.perf_counter()
        connection.send((work(job), time.perf_counter() - begin))


def devices_for(workers: int | str) -> list[str | None]:
    """One entry per process: ``"gpus"`` gives each GPU at hand one, a number so many a share of the processor.

    With one process or none, the caller does the work itself.
    """
    if workers != "gpus":
        return [None] * workers
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")
    return [str(index) for index in range(torch.cuda.device_count())]
