"""A real dask cluster on this machine: a scheduler and its workers, each a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distributed import Client

PATIENCE_S = 120
"""For processes that start on a machine that is busy."""


class Cluster:
    """Processes of a dask cluster on this machine: a scheduler and its workers."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self._folder, self._count = folder, workers
        # Workers import evaluators of the tests.
        self._environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        self.workers: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        """Start the scheduler and the workers; those that there were are gone for certain."""
        self._kill(self.workers)
        place = ("--host", "127.0.0.1", "--port", str(self.port), "--no-show", "--no-dashboard")
        self.scheduler = self._started("dask_scheduler", *place)
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard")
        self.workers = [
            self._started("dask_worker", self.address, *options) for _ in range(self._count)
        ]
        connect: Any = Client  # without types
        with connect(self.address, timeout=PATIENCE_S, set_as_default=False) as client:
            client.wait_for_workers(self._count, timeout=PATIENCE_S)

    def _started(self, program: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.{program}", *options]
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self._folder, stdout=log, stderr=log, env=self._environment
            )

    def end(self) -> None:
        """Kill all processes."""
        self._kill([self.scheduler, *self.workers])

    @staticmethod
    def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            process.kill()
            process.wait()
