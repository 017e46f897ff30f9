"""The answers: every space enumerated, its certificate checked, known chips beside the winner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from phaze_opt.evaluation import Evaluation
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.designs import chip_of
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.study.baselines import train_at_best
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.enumerating import certificate_of, enumerate_study, verify_certificate
from studies.atlas.questions import HBM_RATIO, KNOWN_CHIPS, Question, alone
from studies.paper.searches import Winner, enumerated, search, study_in
from studies.work import Work

TOP = 10


@dataclass(frozen=True)
class Trained:
    """A model on a chip, at the best of the options that a space tries.

    Attributes
    ----------
    chip
        Its name.
    area_mm2
        Under ``chip``; ``None`` where that model has none.
    samples_per_s
        0 where it does not fit.
    placement
        Degrees; empty where it does not fit.
    """

    chip: str
    area_mm2: float | None
    samples_per_s: float
    mfu: float = 0.0
    placement: str = ""
    energy_j_per_sample: float = 0.0
    shares: Mapping[str, float] | None = None

    @classmethod
    def by(cls, chip: str, area_mm2: float | None, evaluation: Evaluation, batch: int) -> Trained:
        """Return what an evaluation says."""
        placement, time_s = evaluation.placement, evaluation.time_per_batch_s
        if placement is None or time_s is None:
            return cls(chip, area_mm2, 0.0)
        return cls(
            chip=chip,
            area_mm2=area_mm2,
            samples_per_s=evaluation.throughput_samples_per_s,
            mfu=evaluation.mfu,
            placement=placement.degrees_text,
            energy_j_per_sample=evaluation.energy_j_per_batch / batch,
            shares={name: s / time_s for name, s in evaluation.time_breakdown_s.items()},
        )


@dataclass(frozen=True)
class Proven:
    """The certified best design of a space.

    Attributes
    ----------
    values
        On the axes.
    limit_mm2
        Of the area.
    points, evaluated
        Designs of the space, and those that were evaluated.
    status, gap
        ``certified``, or how far the best may be below the bound of the others.
    """

    values: Mapping[str, Scalar]
    limit_mm2: float
    points: int
    evaluated: int
    status: str
    gap: float
    trained: Trained


@dataclass(frozen=True)
class Checked:
    """How many statements of a certificate were checked, and hold."""

    statements: int


@dataclass(frozen=True)
class Known:
    """Known chips on the question of a space, each at its best with its own HBM."""

    trained: tuple[Trained, ...]


@dataclass(frozen=True)
class Answer:
    """What was found for a question.

    Attributes
    ----------
    known
        Chips beside it; none but for the models themselves.
    chip_first
        The chip that trains fastest alone, placed afterwards; ``None`` where it is not asked.
    checks
        Statements of its certificate that were checked; ``None`` where that was not asked.
    """

    question: Question
    proven: Proven
    known: tuple[Trained, ...] = ()
    chip_first: Trained | None = None
    checks: int | None = None


def answer(work: Work, question: Question, *, chip_first: bool, check: bool = False) -> Answer:
    """Answer a question, unless that was done.

    Parameters
    ----------
    work
        Of the run.
    chip_first
        Whether to search the chip alone too, and to place it afterwards.
    check
        Whether to check the certificate, which takes more memory than to find it.
    """
    spec = question.spec
    proven = work.answer(f"prove-{spec.name}", spec, Proven, lambda: _prove(work, spec))
    checks = None
    if check:
        part = f"check-{spec.name}"
        checks = work.answer(part, spec, Checked, lambda: _check(work, spec)).statements
    if question.part != "models":
        return Answer(question, proven, checks=checks)
    known = work.answer(f"known-{spec.name}", [spec, KNOWN_CHIPS], Known, lambda: _known(spec))
    first = None
    if chip_first:
        winner = search(work, alone(spec))
        part = f"chip-first-{spec.name}"
        first = work.answer(part, [spec, winner], Trained, lambda: _placed(spec, winner))
    return Answer(question, proven, known.trained, first, checks)


def _prove(work: Work, spec: StudySpec) -> Proven:
    """Enumerate a space, and evaluate the best design once more."""
    study, enumeration = enumerated(work, spec, TOP)
    best = enumeration.top[0]
    design = study.resolved.design(DesignPoint(best.point))
    run = Engine(study, study.evaluator).objective.best_run(0, design)
    return Proven(
        values=dict(best.point),
        limit_mm2=study.resolved.area_limit_mm2,
        points=enumeration.points,
        evaluated=enumeration.evaluated,
        status=enumeration.status,
        gap=enumeration.gap or 0.0,
        trained=Trained.by("winner", best.metrics.area_mm2, run.evaluation, spec.global_batch),
    )


def _check(work: Work, spec: StudySpec) -> Checked:
    """Check the certificate of a space that was enumerated."""
    study = study_in(work, spec)
    certificate = certificate_of(study, enumerate_study(study, top=TOP), TOP)
    return Checked(sum(check.checked for check in verify_certificate(certificate)))


def _known(spec: StudySpec) -> Known:
    """Train the model on known chips, one after the other, each at its best."""
    return Known(tuple(_on_known(spec, KNOWN_CHIPS)))


def _on_known(spec: StudySpec, names: tuple[str, ...]) -> Iterator[Trained]:
    """Yield the model on each of some chips."""
    chips = [load_accelerator(name) for name in names]
    for name, chip, run in zip(names, chips, train_at_best(spec, chips), strict=True):
        area_mm2 = chip.area_chip_mm2
        if run is None:
            yield Trained(name, area_mm2, 0.0)
        else:
            yield Trained.by(name, area_mm2, run.evaluation, spec.global_batch)


def _placed(spec: StudySpec, winner: Winner) -> Trained:
    """Place the model on the chip that was best alone; its HBM is that of its bandwidth."""
    plain = dict(winner.values)
    plain["hbm_gib"] = float(plain["hbm_gb_per_s"]) / HBM_RATIO
    chip = chip_of(load_accelerator(spec.space.base), plain)
    (run,) = train_at_best(spec, [chip])
    if run is None:
        return Trained("chip first", winner.area_mm2, 0.0)
    return Trained.by("chip first", winner.area_mm2, run.evaluation, spec.global_batch)
