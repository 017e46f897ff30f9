"""The certified best design of a study's whole space, and its proven front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phaze_opt.errors import ConflictError, InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.designs import chip_of
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.store.studies import delete_study
from phaze_opt.study.study import Study, create_study
from phaze_opt.whole_space.enumerating import enumerate_study
from phaze_opt.whole_space.exhaustive import TOP, Enumeration
from phaze_opt.whole_space.fronts import front_of_study
from studies.work import Work


@dataclass(frozen=True)
class Winner:
    """The best design of a study.

    Attributes
    ----------
    study
        Its name in the database of the run.
    values
        On the axes of the space.
    value
        Of the objective.
    area_mm2, limit_mm2
        Under the area model of the study.
    points, evaluated
        Designs of the space, and those that were evaluated; the bounds of all others prove that
        none of them is better.
    accelerator
        Its chip.
    """

    study: str
    values: Mapping[str, Scalar]
    value: float
    area_mm2: float
    limit_mm2: float
    points: int
    evaluated: int
    status: str
    gap: float
    accelerator: Accelerator


@dataclass(frozen=True)
class FrontChip:
    """A design than which none of its space is both faster and smaller.

    Attributes
    ----------
    values
        On the axes of the space.
    """

    throughput_samples_per_s: float
    area_mm2: float
    values: Mapping[str, Scalar]


@dataclass(frozen=True)
class ProvenFront:
    """The front of throughput and area of a whole space, the fastest design first.

    Attributes
    ----------
    points, evaluated
        Designs of the space, and those that were evaluated; the bounds of all others prove that
        none of them belongs to the front.
    """

    points: int
    evaluated: int
    designs: tuple[FrontChip, ...]


def study_in(work: Work, spec: StudySpec) -> Study:
    """Return the study of a spec in the database of a run, where it replaces an older one."""
    try:
        return create_study(spec, work.storage, exist_ok=True)
    except ConflictError:
        # The spec or the cost model was another one; evaluations that still hold are kept.
        delete_study(spec.name, work.storage)
        return create_study(spec, work.storage)


def enumerated(
    work: Work, spec: StudySpec, top: int = TOP, time_limit_s: float | None = None
) -> tuple[Study, Enumeration]:
    """Return the study of a spec, and its so many best designs: one at least.

    Within a time limit, if there is one, with the gap that is left then.

    Raises
    ------
    InputError
        If no design is feasible.
    """
    study = study_in(work, spec)
    enumeration = enumerate_study(study, top=top, time_limit_s=time_limit_s, workers=work.workers)
    if not enumeration.top:
        raise InputError(f"No design of the study {spec.name!r} is feasible.")
    return study, enumeration


def search(work: Work, spec: StudySpec) -> Winner:
    """Enumerate the space of a study, unless that was done."""

    def found() -> Winner:
        study, enumeration = enumerated(work, spec)
        best = enumeration.top[0]
        assert best.metrics.area_mm2 is not None
        return Winner(
            study=spec.name,
            values=dict(best.point),
            value=best.metrics.value,
            area_mm2=best.metrics.area_mm2,
            limit_mm2=study.resolved.area_limit_mm2,
            points=enumeration.points,
            evaluated=enumeration.evaluated,
            status=enumeration.status,
            gap=0.0 if enumeration.gap is None else enumeration.gap,
            accelerator=chip_of(study.resolved.base, dict(best.point)),
        )

    return work.answer(f"search-{spec.name}", spec, Winner, found)


def proven_front(work: Work, spec: StudySpec) -> ProvenFront:
    """Find the front of throughput and area of a study's space, unless that was done."""

    def found() -> ProvenFront:
        front = front_of_study(study_in(work, spec), workers=work.workers).found
        designs = []
        for design in front.designs:
            throughput_samples_per_s, area_mm2 = design.values
            designs.append(FrontChip(throughput_samples_per_s, area_mm2, dict(design.design.point)))
        return ProvenFront(front.points, front.evaluated, tuple(designs))

    return work.answer(f"front-{spec.name}", spec, ProvenFront, found)
