"""Runs the toy study as a process of its own, so that tests can stop, stall and kill it.

The processes are forks of one that has imported all this: importing it takes longer than most runs.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import optuna

import phaze_opt.study.study as study_module
from phaze_opt.errors import PhazeError
from phaze_opt.printing import print_error
from phaze_opt.store.opening import open_storage
from phaze_opt.store.storage import Storage
from phaze_opt.store.tickets import TicketOffice
from phaze_opt.study.objective import Objective
from phaze_opt.study.study import load_study
from tests.study import fakes


def die(*args: Any, **options: Any) -> Any:
    """End as by kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(where: str) -> None:
    """Make the process die at one of the moments at which something could be lost."""
    if where == "in-ask":
        make = optuna.trial.Trial.__init__

        def made_and_dead(self: Any, *args: Any) -> None:
            make(self, *args)
            die()

        patch.object(optuna.trial.Trial, "__init__", made_and_dead).start()
    elif where == "in-evaluation":
        patch.object(Objective, "__call__", die).start()
    elif where == "before-assign":
        patch.object(TicketOffice, "assign_in", die).start()
    elif where == "before-done":
        patch.object(TicketOffice, "finish_in", die).start()
    elif where == "after-tell":
        tell = optuna.Study.tell

        def told_and_dead(self: Any, *args: Any, **options: Any) -> None:
            tell(self, *args, **options)
            die()

        patch.object(optuna.Study, "tell", told_and_dead).start()


def shift_clock(hours: float) -> None:
    """Let this process believe that it is later, or earlier, than it is."""
    seconds, now = 3600 * hours, time.time

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(seconds=seconds)

    patch("time.time", lambda: now() + seconds).start()
    patch("optuna.storages._rdb.storage.datetime", Shifted).start()
    patch("phaze_opt.store.trial_storage.datetime", Shifted).start()
    patch("phaze_opt.store.trial_rows.datetime", Shifted).start()


def run_forked(
    environment: Mapping[str, str], outputs: Sequence[Path], arguments: Sequence[str]
) -> None:
    """Be a process of its own: in its group, with its environment, output and arguments."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, path in zip((1, 2), outputs, strict=True):
        with path.open("w") as stream:
            os.dup2(stream.fileno(), descriptor)
    try:
        code = run(arguments)
    except PhazeError as error:
        print_error(str(error))
        code = error.exit_code
    sys.exit(code)


def begin(
    environment: Mapping[str, str], target: Callable[..., object], arguments: Sequence[object]
) -> None:
    """Work in the environment of the process that started this one."""
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)


def run(arguments: Sequence[str]) -> int:
    """Run, and print what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--total", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--lease", type=float, default=30.0)
    parser.add_argument("--evaluator", default="toy_evaluator")
    parser.add_argument("--die", default="never")
    parser.add_argument("--clock", type=float, default=0.0)
    parser.add_argument("--file-bytes", type=int, default=resource.RLIM_INFINITY)
    options = parser.parse_args(arguments)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (options.file_bytes, hard))
    shift_clock(options.clock)
    storage: Storage = open_storage()
    study = load_study("toy", storage)
    study.evaluator = getattr(fakes, options.evaluator)
    # The toy has no version; the real one takes a second to import.
    version = study.resolved.cost_model_version
    patch.object(study_module, "current_version", lambda: version).start()
    arm(options.die)
    outcome = study.run(options.total, workers=options.workers, lease_s=options.lease)
    print(outcome.counts, outcome.failures)
    return outcome.exit_code or 0
