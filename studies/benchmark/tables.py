"""The tables of the benchmark: every point of a space evaluated, its optimum proven by bounds."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna

from phaze_opt.codec import write_whole
from phaze_opt.errors import InputError
from phaze_opt.spec.axes import Searched
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.ordering import value_bin
from phaze_opt.spec.space import DesignPoint, all_points, point_of
from phaze_opt.spec.study_spec import read_spec
from phaze_opt.store.caches import NoEvaluations, ScheduleCache
from phaze_opt.study.guided import bound_sampler
from phaze_opt.study.objective import Objective, evaluator_of
from phaze_opt.study.study import Study
from phaze_opt.study.worker import suggest
from phaze_opt.whole_space.certificate import certificate_document
from phaze_opt.whole_space.enumerating import certificate_of, verify_certificate
from phaze_opt.whole_space.exhaustive import Enumeration
from phaze_opt.workload.graph import Workload
from studies.benchmark.problem import (
    VERSION,
    Axis,
    Certificate,
    Condition,
    Problem,
    checksum,
    documents,
    load,
    names,
)
from studies.paper.checks import WrongResultError
from studies.paper.searches import enumerated
from studies.work import Work

SPECS = Path(__file__).parent / "specs"

TOP = 100
"""Best designs that are proven: all that are within a bin of the best must be among them."""

MOST_BOUND = 200
"""Trials of ``bound`` that are kept where it has no proof before."""

CONDITIONS: Mapping[str, Mapping[str, Condition]] = {
    "network": {"network.1.taper": ("network.1.topology", ("fat-tree", "rail"))}
}
"""Axes of a problem that count only under some values of another."""


@dataclass(frozen=True)
class Evaluated:
    """All points of a space in the order of their numbers.

    Attributes
    ----------
    values
        Samples per second; ``None`` if infeasible.
    limits
        Names of violated limits; empty if feasible.
    violations
        Relative excess over them.
    """

    values: tuple[float | None, ...]
    limits: tuple[str, ...]
    violations: tuple[float, ...]


def write_table(work: Work, path: Path, folder: Path) -> None:
    """Evaluate every point of a spec, prove its optimum, and write both.

    Parameters
    ----------
    work
        Keeps what was found.
    path
        The spec; its first lines, comments, say what is searched.
    folder
        For the three files of the problem.

    Raises
    ------
    WrongResultError
        If the proven optimum is not the largest value of the table.
    InputError
        If the folder has other values of this version.
    """
    spec, name = read_spec(path), path.stem
    study, enumeration = enumerated(work, spec, TOP)
    proof = certificate_of(study, enumeration, TOP)

    def checked() -> int:
        return sum(check.checked for check in verify_certificate(proof))

    checks = work.answer(f"check-{name}", spec, int, checked)
    table = work.answer(f"evaluate-{name}", spec, Evaluated, lambda: evaluate_all(study))
    order = work.answer(f"bound-{name}", spec, tuple[int, ...], lambda: _bound_order(study, table))
    axes = tuple(_axis(name, axis, searched) for axis, searched in spec.space.searched.items())
    shape = [len(axis.choices) for axis in axes]
    values = np.array(table.values, np.float64).reshape(shape)
    optimum, best = _optimum(enumeration, np.nanmax(values), name)
    limits = tuple(sorted({*table.limits} - {""}))
    codes = [limits.index(limit) + 1 if limit else 0 for limit in table.limits]
    problem = Problem(
        name=name,
        version=VERSION,
        about=_about(path),
        unit="samples/s",
        axes=axes,
        certificate=_certificate(name, study, enumeration, checks),
        optimum=optimum,
        best={axis.name: best[axis.name] for axis in axes},
        bound_order=order,
        limits=limits,
        values=values,
        codes=np.array(codes, np.uint8).reshape(shape),
        violations=np.array(table.violations, np.float32).reshape(shape),
    )
    _refuse_other_values(problem, folder)
    for file, content in documents(problem).items():
        write_whole(folder / file, content)
    packed = gzip.compress(certificate_document(proof), mtime=0)
    write_whole(folder / problem.certificate.file, packed)


def evaluate_all(study: Study) -> Evaluated:
    """Evaluate every point of a space with the cost model, each by itself."""
    objective = objective_of(study.resolved, study.workloads())
    metrics = [objective(point) for point in all_points(study.resolved.spec.space)]
    return Evaluated(
        values=tuple(each.value if each.feasible else None for each in metrics),
        limits=tuple(each.limit or "" for each in metrics),
        violations=tuple(each.violation for each in metrics),
    )


def objective_of(study: ResolvedStudy, workloads: Sequence[Workload]) -> Objective:
    """Return the objective of a study, which keeps schedules, but no evaluations."""
    kept = NoEvaluations(), ScheduleCache(None)
    return Objective(study, workloads, *kept, evaluator_of(study))


def _axis(problem: str, name: str, searched: Searched) -> Axis:
    """Return an axis of a problem."""
    words = any(isinstance(value, bool | str) for value in searched.values)
    condition = CONDITIONS.get(problem, {}).get(name)
    return Axis(name, "categorical" if words else "ordered", searched.values, condition)


def _certificate(name: str, study: Study, enumeration: Enumeration, checks: int) -> Certificate:
    """Return what an enumeration proves."""
    return Certificate(
        status=enumeration.status,
        gap=enumeration.gap or 0.0,
        points=enumeration.points,
        evaluated=enumeration.evaluated,
        checks=checks,
        cost_model_version=enumeration.version,
        spec_hash=study.resolved.hash,
        file=f"{name}.certificate.json.gz",
    )


def _optimum(enumeration: Enumeration, largest: float, name: str) -> tuple[float, DesignPoint]:
    """Return the largest value of an enumeration, which must be that of the table, and its point.

    Values of one bin count as equal in the order of designs, so that the largest may come later.
    """
    best = max(enumeration.top, key=lambda design: design.metrics.value)
    bins = [value_bin(design.metrics.value) for design in enumeration.top]
    is_whole = len(bins) < TOP or bins[-1] < bins[0]
    if enumeration.status != "certified" or not is_whole or best.metrics.value != largest:
        raise WrongResultError(
            f"{name}: {best.metrics.value} is proven, but {largest} is the largest of the table."
        )
    return best.metrics.value, DesignPoint(best.point)


def _bound_order(study: Study, table: Evaluated) -> tuple[int, ...]:
    """Return the points that the sampler ``bound`` tries, up to its proof."""
    space = study.resolved.spec.space
    numbers = {point: number for number, point in enumerate(all_points(space))}
    tried: list[int] = []

    def value(trial: optuna.Trial) -> float:
        number = numbers[point_of(space, suggest(trial, space))]
        tried.append(number)
        known = table.values[number]
        return -table.violations[number] if known is None else known

    sampler = bound_sampler(study.resolved, study.workloads())
    optuna.create_study(direction="maximize", sampler=sampler).optimize(value, MOST_BOUND)
    return tuple(tried)


def _about(path: Path) -> str:
    """Return the comment at the head of a spec."""
    lines = path.read_text("utf-8").split("\n\n", 1)[0].splitlines()
    return " ".join(line.removeprefix("# ") for line in lines)


def _refuse_other_values(problem: Problem, folder: Path) -> None:
    """Refuse to change the values of a version that others may have cited."""
    if problem.name not in names(folder):
        return
    there = load(problem.name, folder)
    if there.version == VERSION and checksum(there.values) != checksum(problem.values):
        raise InputError(
            f"The values of {problem.name} are others than those of version {VERSION} of the "
            "benchmark: raise VERSION in studies/benchmark/problem.py to make a new one."
        )
