"""Checks a certificate, and trusts none of its numbers.

The checks compute every claim again from the frozen study alone. The boxes must partition the chips
of the space, chip by chip; their bounds must be those of plain Python (`scalar_bounds`); closed
cells must come after the top. A second enumeration must give the same counts and designs. The chips
that it excluded are bounded again in plain Python, and a sample of all points is evaluated. Where
bounds depend on least energies, a sample of these is compared with evaluations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from phaze_opt.bounds.bounding import SpacePart, bound_parts
from phaze_opt.bounds.study_bounds import check_bounded
from phaze_opt.errors import ConflictError
from phaze_opt.spec.freezing import capture_models
from phaze_opt.spec.frozen import ResolvedStudy, content_hash, current_version
from phaze_opt.spec.space import DesignPoint
from phaze_opt.store.enumerations import BoundStore
from phaze_opt.whole_space.certificate import Certificate
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.verification import (
    Check,
    Enumerated,
    RefusedError,
    Verification,
    is_near,
    require,
)
from phaze_opt.whole_space.verifying_boxes import check_bounds, check_closed, check_partition
from phaze_opt.whole_space.verifying_chips import check_chips
from phaze_opt.whole_space.verifying_energies import check_energies
from phaze_opt.workload.graph import Workload

__all__ = ["Check", "RefusedError", "captured_again", "check_origin", "verify"]

SAMPLE = 50
"""Number of points of the whole space that are evaluated."""


def check_origin(certificate: Certificate) -> tuple[Workload, ...]:
    """Return the workloads of a certificate, captured again.

    Raises
    ------
    ConflictError
        If the certificate belongs to another version of the cost model.
    RefusedError
        If the frozen study or a workload differs from its hash in the certificate.
    """
    study = certificate.study
    if study.cost_model_version != current_version():
        raise ConflictError(
            f"The certificate is of cost-model version {study.cost_model_version}, but this "
            f"program has {current_version()}."
        )
    require(study.hash == certificate.study_hash, "the hash of the study")
    return captured_again(study)


def captured_again(study: ResolvedStudy) -> tuple[Workload, ...]:
    """Return the workloads of a study, captured again.

    Raises
    ------
    RefusedError
        If a workload differs from its hash in the study.
    """
    workloads = capture_models(study.spec)
    hashes = tuple(map(content_hash, workloads))
    require(hashes == study.workload_hashes, "the hash of a captured workload")
    return workloads


def verify(
    certificate: Certificate,
    engine: Engine,
    store: BoundStore | None,
    on_check: Callable[[Check], None] = lambda check: None,
    found: Enumerated | None = None,
) -> list[Check]:
    """Check a certificate.

    Parameters
    ----------
    certificate, engine, store, found
        See `phaze_opt.whole_space.verification.Verification`.
    on_check
        Called after every check.

    Returns
    -------
    checks
        All checks, in their order; with ``found`` none compares an enumeration with itself.

    Raises
    ------
    InputError
        If no bound is known for the study's objective.
    RefusedError
        If a claim of the certificate is wrong; the sentence names it.
    """
    check_bounded(certificate.study.spec.objectives)
    verification = Verification(certificate, engine, store, found)
    done: list[Check] = []

    def tell(check: Check) -> None:
        done.append(check)
        on_check(check)

    for check in (check_partition, check_bounds, check_closed, _check_top):
        tell(check(verification))
    if found is None:
        tell(_check_counts(verification))
    for check_of_chips in check_chips(verification):
        tell(check_of_chips)
    if engine.rule.asks_for_energy:
        tell(check_energies(verification))
    tell(_check_sample(verification))
    return done


def _check_top(verification: Verification) -> Check:
    """Evaluate the designs of the top again."""
    certificate, ranks = verification.certificate, []
    for design in certificate.top:
        point = DesignPoint(design.point)
        metrics = verification.metrics(point)
        equal = metrics.feasible and metrics.values == design.values
        require(equal and metrics.area_mm2 == design.area_mm2, "the value of a design of the top")
        ranks.append(metrics.rank(certificate.study, point))
    keys = [rank.key for rank in ranks]
    require(keys == sorted(keys), "the order of the top")
    require(len(verification.in_top) == len(keys), "a design that is there once")
    full = len(keys) == certificate.asked
    require(len(keys) <= certificate.asked, "the size of the top")
    last = tuple(keys[-1][:3]) if full and keys else None
    stated = None if certificate.last is None else tuple(certificate.last)
    require(last == stated, "the last key of the top")
    return Check("designs of the top", len(keys), len(keys))


def _check_counts(verification: Verification) -> Check:
    """Enumerate again, and compare every number and every opened cell."""
    certificate, again = verification.certificate, verification.again.certificate
    require(len(again.boxes) == len(certificate.boxes), "the list of boxes")
    for box, other in zip(certificate.boxes, again.boxes, strict=True):
        require(box.rates == other.rates, "the list of boxes")
        require(box.opened == other.opened, "the list of opened boxes")
        pairs = zip(sum(box.bounds, ()), sum(other.bounds, ()), strict=True)
        require(all(is_near(stated, computed) for stated, computed in pairs), "a bound of a box")
    require(again.infeasible_proven == certificate.infeasible_proven, "what fits no memory")
    require(again.evaluated == certificate.evaluated, "the number of points that were evaluated")
    require(again.bounded == certificate.bounded, "the number of points that were not evaluated")
    require(again.feasible == certificate.feasible, "the number of feasible points")
    require(again.top == certificate.top, "that no other design is of the top")
    count = len(verification.again.evaluated)
    return Check("evaluated points", count, count)


def _check_sample(verification: Verification) -> Check:
    """Evaluate points of the whole space: none may be better than its bound, or than the top."""
    grid = verification.grid
    count = min(SAMPLE, grid.points)
    for place in verification.generator.sample(range(grid.points), count):
        option, size, row = (int(at) for at in np.unravel_index(place, grid.shape))
        part = SpacePart(option, ((row, row + 1),))
        (bounds,) = bound_parts(grid, verification.engine.rule, [part])
        verification.below(grid.point(option, size, row), float(bounds[size, 0]))
    return Check("points of the whole space", count, grid.points)
