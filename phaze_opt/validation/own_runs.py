"""Predicted against measured training runs of a user: one run per row of a CSV file.

A row states what is known of a run, by the names of this project or those of the frameworks
(``framework_names.toml``). What it leaves empty is as its software does by default, but for what
differs from run to run: the microbatch, the recompute, and what sends tokens to their experts. Of
these all choices are tried; the fastest that fits is the prediction, and the range of all of them,
on the slowest and the fastest chips of the name, stands beside it.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from phaze_opt.child_processes import begin_in_process
from phaze_opt.codec import data_table, from_text
from phaze_opt.errors import InputError, PhazeError, unknown_name
from phaze_opt.limits import is_finite
from phaze_opt.training import Training
from phaze_opt.user_files import CsvRow, read_rows
from phaze_opt.validation.measured import NOTES, ValidationRow, ValidationTable
from phaze_opt.validation.stated_run import EvaluatedRun, evaluate_stated_run

_NEEDED = ("model", "accelerator", "cluster", "global_batch")
_PLACES = (
    *("pipeline", "data", "tensor", "devices", "sequence"),
    *("attention_kernel", "software", "fusion", "lora_rank", "lora_targets"),
)
_MEMORY = {"measured_memory_bytes": 1.0, "measured_memory_gib": 2.0**30}
_TIMES = (
    *("measured_s", "samples_per_s", "tokens_per_s"),
    *("tokens_per_s_per_device", "tflops_per_device"),
)
"""Columns of which one holds what a run took."""
_DEGREES = ("pipeline", "tensor", "context_parallel")
_RECOMPUTES = "none selective full"
_DISPATCHERS = "nccl deepep hybridep"
"""What is tried where nothing is stated."""
MANY_ROWS = 1000
"""From which on rows are predicted in several processes, each of which takes seconds to start."""
_MOST_PROCESSES, _ROWS_AT_ONCE = 4, 50
_MOST_MICROBATCH = 32
"""Largest microbatch that is tried where none is stated."""


class OwnRun(NamedTuple):
    """A run of a user, predicted.

    Attributes
    ----------
    accelerator
        Name or path of the chip.
    time, memory
        Rows of their tables; ``None`` where it was not measured.
    """

    accelerator: str
    time: ValidationRow | None
    memory: ValidationRow | None


def validate_own_runs(path: Path) -> list[ValidationTable]:
    """Predict every run of a CSV file.

    Parameters
    ----------
    path
        Its first line names columns: ``model``, ``accelerator``, ``cluster``, ``global_batch``,
        ``software`` or ``optimizer``; the degrees ``pipeline``, ``tensor`` (1 where empty) and
        ``data`` or ``devices``; what was measured, ``measured_s``, ``samples_per_s``,
        ``tokens_per_s``, ``tokens_per_s_per_device`` or ``tflops_per_device``, and perhaps
        ``measured_memory_bytes`` or ``measured_memory_gib``; ``sequence``, ``attention_kernel``,
        every field of `phaze_opt.training.Training`; and ``case``, ``source`` and ``note``.

    Returns
    -------
    tables
        Times, then memory, each by accelerator in the order of the file.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If it is no such file, or a run cannot be evaluated; names the line.
    """
    rows: list[dict[str, str | None]] = read_rows(path, (), dict)
    if len(rows) < MANY_ROWS:
        runs = read_rows(path, (), _own_run)
    else:
        runs = _predicted_by_processes(path, rows)
    if not runs:
        raise InputError(f"The CSV file {path} has no row, but it must have one per run.")
    times: dict[str, list[ValidationRow]] = {}
    memory: dict[str, list[ValidationRow]] = {}
    for number, run in enumerate(runs, start=1):
        for row, grouped in ((run.time, times), (run.memory, memory)):
            if row is not None:
                named = row if row.case else replace(row, case=f"row {number}")
                grouped.setdefault(run.accelerator, []).append(named)
    name, source = path.name, str(path)
    return [
        *(ValidationTable(name, chip, 0.0, source, tuple(rows)) for chip, rows in times.items()),
        *(
            ValidationTable(f"{name} memory", chip, 0.0, source, tuple(rows), "B")
            for chip, rows in memory.items()
        ),
    ]


def _predicted_by_processes(path: Path, rows: Sequence[CsvRow]) -> list[OwnRun]:
    """Predict many rows in some processes, in their order; the first that fails is refused."""
    processes = min(os.cpu_count() or 1, _MOST_PROCESSES)
    try:
        with ProcessPoolExecutor(processes, get_context("spawn"), begin_in_process) as pool:
            found = list(pool.map(_own_run_or_nothing, rows, chunksize=_ROWS_AT_ONCE))
    except BrokenExecutor:
        raise PhazeError(
            f"A process that predicted rows of {path} was killed; is there too little memory?"
        ) from None
    bad = next((place for place, run in enumerate(found) if run is None), None)
    if bad is not None:
        places = itertools.count()
        # Once more, for the sentence with its line.
        read_rows(path, (), lambda row: _own_run(row) if next(places) == bad else None)
    return [run for run in found if run is not None]


def _own_run_or_nothing(row: CsvRow) -> OwnRun | None:
    """Predict one row; ``None`` where it is refused."""
    try:
        return _own_run(row)
    except PhazeError:
        return None


def _own_run(row: CsvRow) -> OwnRun:
    """Predict one row."""
    cells = _known_cells(row)
    missing = next((name for name in _NEEDED if not cells.get(name)), None)
    if missing is not None:
        raise InputError(f"{missing} is empty, but every run must state it.")
    stated = [name for name in (*_TIMES, *_MEMORY) if cells.get(name)]
    times = [name for name in stated if name in _TIMES]
    if not stated or len(times) > 1:
        found = " and ".join(times) or "nothing"
        raise InputError(f"A run states one of {', '.join(_TIMES)}, but here {found} is stated.")
    sizes = [name for name in stated if name in _MEMORY]
    if len(sizes) > 1:
        raise InputError(f"{' and '.join(sizes)} are stated, but a run has one of them.")
    measured = {name: _positive(name, cells[name]) for name in stated}
    run = evaluate_stated_run(_options(cells))
    common = ValidationRow(
        case=cells.get("case", ""),
        measured=0.0,
        predicted=0.0,
        assumed=run.assumed,
        trust=cells.get("trust", ""),
        source=cells.get("source", ""),
        repeats=cells.get("repeats", ""),
    )
    time = memory = None
    if times:
        measured_s = _measured_s(times[0], measured[times[0]], run)
        time = replace(
            common,
            measured=measured_s,
            predicted=run.time_s,
            parts_s=run.parts_s,
            bound=run.bound,
            predicted_range=run.range_s,
            closest=_closest(run, measured_s),
        )
    for name in sizes:
        measured_bytes = measured[name] * _MEMORY[name]
        memory = replace(common, measured=measured_bytes, predicted=run.reserved_bytes)
    return OwnRun(cells["accelerator"], time, memory)


def _known_cells(row: CsvRow) -> dict[str, str]:
    """Return the cells that say something, by our names."""
    names = framework_names()
    cells: dict[str, str] = {}
    for column, text in row.items():
        if not isinstance(text, str) or column is None or not text.strip():
            if isinstance(text, list) and any(text):
                raise InputError("The line has more cells than the first line has columns.")
            continue
        plain = column.strip().lstrip("-").replace("-", "_")
        name = names.get(plain, plain)
        if name not in _columns():
            raise unknown_name("column", column, sorted({*_columns(), *names}))
        if name in cells:
            raise InputError(f"{name} is stated twice; keep one of its columns.")
        cells[name] = text.strip()
    return cells


@functools.cache
def framework_names() -> Mapping[str, str]:
    """Return our columns by the names that frameworks have for them."""
    tables = data_table("validation", "framework_names.toml").values()
    return {name: own for table in tables for name, own in table.items()}


@functools.cache
def _options_of_a_run() -> frozenset[str]:
    """Return the columns that say how a model ran."""
    return frozenset((*_NEEDED, *_PLACES, *(field.name for field in fields(Training))))


@functools.cache
def _columns() -> frozenset[str]:
    """Return all columns that a row may have."""
    return frozenset((*_options_of_a_run(), *NOTES, *_MEMORY, *_TIMES))


def _positive(name: str, text: str) -> float:
    """Return what was measured."""
    value: float = from_text(text, float, name)
    if not (is_finite(value) and value > 0.0):
        raise InputError(f"{name} is {text!r}, but it must be a positive and finite number.")
    return value


def _options(cells: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a run as `evaluate_stated_run` reads them."""
    options = {name: text for name, text in cells.items() if name in _options_of_a_run()}
    whole = {name: _whole(name, options.setdefault(name, "1")) for name in _DEGREES}
    shared = whole["pipeline"] * whole["tensor"] * whole["context_parallel"]
    if "devices" in options:
        devices = _whole("devices", options.pop("devices"))
        if devices % shared:
            raise InputError(f"devices is {devices}, but the stated degrees take {shared} each.")
        options.setdefault("data", str(devices // shared))
        if _whole("data", options["data"]) * shared != devices:
            raise InputError(f"devices is {devices}, but the degrees take another number.")
    elif "data" not in options:
        raise InputError("data and devices are empty, but one of them must be stated.")
    if "microbatch" in options:
        options["microbatches"] = options.pop("microbatch")
    else:
        replica = _whole("global_batch", options["global_batch"]) // _whole("data", options["data"])
        options["microbatches"] = " ".join(map(str, _microbatches(max(replica, 1))))
    if "recompute_parts" in options:
        options.setdefault("recompute", "selective")
    elif options.get("offload_parts", "layer") != "layer":
        options.setdefault("recompute", "none full")
    options.setdefault("recompute", _RECOMPUTES)
    # Rows of a fixed number go through NCCL only.
    fixed = from_text(options.get("expert_capacity", "0"), float, "expert_capacity") != 0.0
    if not fixed and _whole("expert_parallel", options.get("expert_parallel", "1")) > 1:
        options.setdefault("dispatcher", _DISPATCHERS)
    return options


def _whole(name: str, text: str) -> int:
    """Return a positive whole number."""
    value: int = from_text(text, int, name)
    if value < 1:
        raise InputError(f"{name} is {value}, but it must be at least 1.")
    return value


def _microbatches(most: int) -> Iterator[int]:
    """Yield the powers of two that a replica's share of a batch allows."""
    sizes = (2**power for power in range(_MOST_MICROBATCH.bit_length()))
    yield from itertools.takewhile(lambda size: size <= most, sizes)


def _measured_s(name: str, measured: float, run: EvaluatedRun) -> float:
    """Return the time per batch that a measured rate means."""
    evaluation = run.evaluation
    tokens_per_s = evaluation.tokens_per_s_per_device
    if name.startswith("tokens") and tokens_per_s is None:
        raise InputError(f"{name} is stated, but a sample of the model has no number of tokens.")
    predicted = {
        "samples_per_s": evaluation.throughput_samples_per_s,
        "tokens_per_s": (tokens_per_s or 0.0) * run.costed.point.cluster.devices,
        "tokens_per_s_per_device": tokens_per_s or 0.0,
        "tflops_per_device": evaluation.tflops_per_device or 0.0,
    }
    return measured if name == "measured_s" else run.time_s * predicted[name] / measured


def _closest(run: EvaluatedRun, measured_s: float) -> str:
    """Return the choice of what is left open that comes nearest to what was measured."""
    return min(
        run.tried, key=lambda tried: abs((tried.evaluation.time_per_batch_s or 0.0) - measured_s)
    ).choice
