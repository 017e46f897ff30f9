"""The answers: every space enumerated, its certificate checked, known chips beside the winner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from phaze_opt.evaluation import Evaluation
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.designs import chip_of
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.study.baselines import train_at_best
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.enumerating import certify_again
from phaze_opt.whole_space.verification import RefusedError
from studies.atlas.believable import Believed, believed
from studies.atlas.examined import examine
from studies.atlas.questions import HBM_RATIO, KNOWN_CHIPS, Question, alone
from studies.atlas.robustness import Robust
from studies.atlas.scheduling import Scheduled, schedules
from studies.left_out import LeftOut
from studies.paper.searches import Winner, enumerated, search, study_in
from studies.paper.settings import changed
from studies.work import Work

TOP = 10
LIMIT_S = 900.0
"""Of a search; what is not certified then has a gap."""


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
    devices, tco_usd, wall_power_w
        How many of it, what all of them cost with their electricity, and what each draws; 0 where
        no bill was asked.
    """

    chip: str
    area_mm2: float | None
    samples_per_s: float
    mfu: float = 0.0
    placement: str = ""
    energy_j_per_sample: float = 0.0
    shares: Mapping[str, float] | None = None
    devices: int = 0
    tco_usd: float = 0.0
    wall_power_w: float = 0.0

    @classmethod
    def by(cls, chip: str, area_mm2: float | None, evaluation: Evaluation, batch: int) -> Trained:
        """Return what an evaluation says."""
        placement, time_s = evaluation.placement, evaluation.time_per_batch_s
        if placement is None or time_s is None:
            return cls(chip, area_mm2, 0.0)
        bill = evaluation.bill
        return cls(
            chip=chip,
            area_mm2=area_mm2,
            samples_per_s=evaluation.throughput_samples_per_s,
            mfu=evaluation.mfu,
            placement=placement.degrees_text,
            energy_j_per_sample=evaluation.energy_j_per_batch / batch,
            shares={name: s / time_s for name, s in evaluation.time_breakdown_s.items()},
            devices=placement.devices if bill is None else bill.devices,
            tco_usd=bill.tco_usd.central if bill is not None else 0.0,
            wall_power_w=bill.wall_power_w_per_device.central if bill is not None else 0.0,
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
        ``certified``, or how far the best may be below the bound of the others; ``None`` where some
        have no bound yet.
    """

    values: Mapping[str, Scalar]
    limit_mm2: float
    points: int
    evaluated: int
    status: str
    gap: float | None
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
    believed
        What is stated of the winner; ``None`` where that is not asked.
    examined
        What random designs that were left out reach; ``None`` where that is not asked.
    scheduled
        What exact schedules bring; of the models themselves.
    robust
        How it stands under joint draws of all constants; ``None`` where that was not asked.
    """

    question: Question
    proven: Proven
    known: tuple[Trained, ...] = ()
    chip_first: Trained | None = None
    checks: int | None = None
    believed: Believed | None = None
    examined: LeftOut | None = None
    scheduled: Scheduled | None = None
    robust: Robust | None = None


@dataclass(frozen=True)
class Common:
    """One chip for many models.

    Attributes
    ----------
    models
        Those that it is searched for.
    winner
        The certified best of the geometric mean over them, of throughput over the H100's.
    trained
        Every model of the atlas on it, at the best of the options of its own question.
    """

    models: tuple[str, ...]
    winner: Winner
    trained: tuple[Trained, ...]


def answer(work: Work, question: Question) -> Answer:
    """Answer a question, unless that was done."""
    spec = question.spec
    proven = work.answer(f"prove-{spec.name}", spec, Proven, lambda: _prove(work, spec))
    known = Known(())
    if question.beside:
        known = work.answer(f"known-{spec.name}", [spec, KNOWN_CHIPS], Known, lambda: _known(spec))
    first = None
    if question.chip_first:
        winner = search(work, alone(spec))
        part = f"chip-first-{spec.name}"
        first = work.answer(part, [spec, winner], Trained, lambda: _placed(spec, winner))
    values = proven.values
    return Answer(
        question,
        proven,
        known.trained,
        first,
        believed=believed(work, question, values) if question.believed else None,
        examined=examine(work, spec, values) if question.examined else None,
        scheduled=schedules(work, spec) if question.part == "models" else None,
    )


def is_proven(work: Work, question: Question) -> bool:
    """Whether the search of a question is done."""
    return work.has(f"prove-{question.spec.name}", question.spec)


def is_searched(work: Work, spec: StudySpec) -> bool:
    """Whether the search of a chip for many models is done."""
    return work.has(f"search-{spec.name}", spec)


def _prove(work: Work, spec: StudySpec) -> Proven:
    """Enumerate a space, and evaluate the best design once more."""
    study, enumeration = enumerated(work, spec, TOP, LIMIT_S)
    best = enumeration.top[0]
    design = study.resolved.design(DesignPoint(best.point))
    run = Engine(study, study.evaluator).objective.best_run(0, design)
    return Proven(
        values=dict(best.point),
        limit_mm2=study.resolved.area_limit_mm2,
        points=enumeration.points,
        evaluated=enumeration.evaluated,
        status=enumeration.status,
        gap=enumeration.gap,
        trained=Trained.by("winner", best.metrics.area_mm2, run.evaluation, spec.global_batch),
    )


def check(work: Work, answers: Sequence[Answer], *, kept: bool = False) -> list[Answer]:
    """Check the certificates of answers, unless that was done: each in a process of its own.

    To check one takes longer than to find it, and up to 7 GB; for 16,384 devices 10 GB.

    Parameters
    ----------
    work
        Of the run.
    answers
        Those that are not certified stay as they are.
    kept
        Whether to check nothing, and to say of each what is known.

    Raises
    ------
    RefusedError
        If a statement of a certificate does not hold, or an answer is not what it certifies.
    """
    certified = [each for each in answers if each.proven.status == "certified"]
    if not kept:
        work.in_processes(_checked, certified)
    known = [each for each in certified if work.has(*_check_of(each))]
    statements = {each.question.spec.name: _checked(work, each) for each in known}
    return [replace(each, checks=statements.get(each.question.spec.name)) for each in answers]


def _check_of(each: Answer) -> tuple[str, object]:
    """Return the part of a check, and its question."""
    return f"check-{each.question.spec.name}", [each.question.spec, each.proven]


def _checked(work: Work, each: Answer) -> int:
    """Enumerate a space again, check that certificate, and whether it is one of the answer.

    Returns how many statements were checked.
    """
    spec, proven = each.question.spec, each.proven

    def found() -> Checked:
        certificate, checks = certify_again(study_in(work, spec), TOP)
        best = certificate.top[0]
        certified = dict(best.point), best.values[0], certificate.points, certificate.evaluated
        stated = proven.values, proven.trained.samples_per_s, proven.points, proven.evaluated
        if certified != stated:
            raise RefusedError(f"The answer of {spec.name!r} is {stated}, but {certified} is best.")
        return Checked(sum(check.checked for check in checks))

    return work.answer(*_check_of(each), Checked, found).statements


def common_answer(work: Work, spec: StudySpec, asked: Sequence[Question]) -> Common:
    """Find one chip for many models, and train models on it, unless that was done.

    Parameters
    ----------
    work
        Of the run.
    spec
        One of `common_studies`.
    asked
        The questions of the models alone.
    """
    winner = search(work, spec)

    def found() -> Common:
        chip = winner.accelerator
        models = tuple(workload.model for workload in spec.workloads)
        trained = [_at_best(each.words, chip, each.spec, winner.area_mm2) for each in asked]
        return Common(models, winner, tuple(trained))

    specs = [each.spec for each in asked]
    return work.answer(f"trained-on-{spec.name}", [specs, winner], Common, found)


def _known(spec: StudySpec) -> Known:
    """Train the model on known chips, each at its best."""
    chips = {name: load_accelerator(name) for name in KNOWN_CHIPS}
    return Known(
        tuple(_at_best(name, chip, spec, chip.area_chip_mm2) for name, chip in chips.items())
    )


def _placed(spec: StudySpec, winner: Winner) -> Trained:
    """Place the model on the chip that was best alone; its HBM is that of its bandwidth."""
    plain = dict(winner.values)
    plain["hbm_gib"] = float(plain["hbm_gb_per_s"]) / HBM_RATIO
    chip = chip_of(load_accelerator(spec.space.base), plain)
    return _at_best("chip first", chip, spec, winner.area_mm2)


def _at_best(name: str, chip: Accelerator, spec: StudySpec, area_mm2: float | None) -> Trained:
    """Train the model of a space on a chip, on as many as the space has and its limits allow."""
    counts = [spec]
    if "devices" in spec.space.searched:
        counts = [
            changed(spec, str(count), {"devices": count}, devices=count)
            for count in spec.space.values_of("devices")
        ]
    runs = [run for each in counts for run in train_at_best(each, [chip]) if run is not None]
    if not runs:
        return Trained(name, area_mm2, 0.0)
    best = max(runs, key=lambda run: run.evaluation.throughput_samples_per_s)
    return Trained.by(name, area_mm2, best.evaluation, spec.global_batch)
