"""Whether a winner can be believed: figures of it against what was built and what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from phaze_opt.choices import ProcessNodeName
from phaze_opt.codec import data_rows
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import static_power_w
from phaze_opt.hardware.presets import accelerator_presets
from phaze_opt.precision import PRECISIONS
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.designs import Design
from phaze_opt.spec.ordering import VALUE_BIN
from phaze_opt.spec.space import DesignPoint
from phaze_opt.study.trials import Metrics
from phaze_opt.units import GIB, KIB, MIB
from phaze_opt.validation.measured import TRAINING_FILES
from phaze_opt.whole_space.engine import Engine
from studies.atlas.measured import MeasuredRun, MeasuredRuns, ModelClass, class_of, measured_runs
from studies.atlas.questions import Question
from studies.atlas.steps import Statement, Step, no_step_pays, stated, steps_from, with_step
from studies.paper.searches import study_in
from studies.work import Work


@dataclass(frozen=True)
class Believed:
    """All that is stated of a winner.

    Attributes
    ----------
    words
        Of the question, with the part of the page that it is in.
    """

    words: str
    statements: tuple[Statement, ...]
    steps: tuple[Step, ...]

    @property
    def failing(self) -> list[Statement]:
        """Statements that do not hold."""
        return [statement for statement in self.statements if statement.why_not]

    @property
    def unexplained(self) -> list[Statement]:
        """Statements that do not hold, and have no reason for it."""
        return [statement for statement in self.failing if not statement.has_reason]


def believed(work: Work, question: Question, values: Mapping[str, Scalar]) -> Believed:
    """State what must be so for a winner to be believed, unless that was done.

    Its evaluations, and those of the steps from it, are kept in the database of the run.

    Parameters
    ----------
    work
        Of the run.
    question
        Whose space it is of.
    values
        Of the winner, on the axes.
    """
    rows = [row for name in TRAINING_FILES for row in data_rows("validation", name)]
    asked_of = ["without what masks hide", rows]
    measured = work.answer("measured-mfu", asked_of, MeasuredRuns, lambda: measured_runs(rows)).runs
    part = "" if question.part == "models" else f"{question.part}: "

    def found() -> Believed:
        study = study_in(work, question.spec)
        engine = Engine(study, study.evaluator)
        return _believed(engine, f"{part}{question.words}", values, measured)

    asked = [question.spec, sorted(values.items()), measured]
    return work.answer(f"believed-{question.spec.name}", asked, Believed, found)


def _believed(
    engine: Engine, words: str, values: Mapping[str, Scalar], measured: Sequence[MeasuredRun]
) -> Believed:
    """State what must be so for a winner to be believed; see `believed`."""
    study = engine.objective.study
    # What was kept as JSON has another order of its values, which is the last tie-break of designs.
    axes = study.spec.space.axes
    point = DesignPoint(tuple((name, values[name]) for name in axes if name in values))
    (winner,) = engine.evaluate([point])
    design = study.design(point)
    steps = tuple(steps_from(engine, point, winner))
    statements = (
        _mfu(engine, design, measured, class_of(engine.objective.workloads[0])),
        *_ratios(design.accelerator, steps),
        *_power(engine, design),
        *_halves(engine, design, winner, steps),
        no_step_pays(steps),
    )
    return Believed(words, statements, steps)


def _mfu(
    engine: Engine, design: Design, measured: Sequence[MeasuredRun], models: ModelClass
) -> Statement:
    """State that no more of the peak is used than such models were measured to use.

    Attention that a causal mask hides is counted in neither: it is most of a long sequence.
    """
    run = engine.objective.best_run(0, design)
    evaluation, precision = run.evaluation, run.inputs.training.precision
    used = evaluation.mfu if evaluation.mfu_causal is None else evaluation.mfu_causal
    element, mfu = PRECISIONS[precision].element, 100.0 * used
    what = f"MFU in percent ({models}, {element})"
    for each in measured:
        if (each.models, each.element) == (models, element):
            return stated(what, mfu, 0.0, 100.0 * each.mfu, f"{each.case}: {each.source}")
    return Statement(what, mfu, 0.0, 0.0, "", "no such run was measured")


def built_chips(chip: Accelerator) -> dict[str, Accelerator]:
    """Return the presets with an HBM that were built, in a process no older than that of a chip.

    What is on paper has no process; beside such a chip all stand that were built.
    """
    own_nm = inf if chip.process_node is None else _nanometres(chip.process_node)
    chips = {name: preset.accelerator for name, preset in accelerator_presets().items()}
    return {
        name: built
        for name, built in chips.items()
        if built.has_hbm and built.process_node is not None
        if _nanometres(built.process_node) <= own_nm
    }


def _nanometres(node: ProcessNodeName) -> float:
    """Return the name of a process as a number."""
    return float(node.removeprefix("n"))


def ratios_of(chip: Accelerator) -> list[tuple[str, str, float]]:
    """Return ratios of the numbers of a chip, each with the axis that raises it.

    That to its area is the last; a chip with buffers outside the table of macros has none.
    """
    peak, lanes = chip.peak_flops_per_s, chip.num_vc * chip.pe_vc
    multipliers = chip.num_tc * chip.pe_x * chip.pe_y
    found = [
        ("HBM bytes per 1,000 FLOP", "hbm_gib", 1e3 * chip.hbm_bytes_per_s / peak),
        ("HBM GiB per PFLOP/s", "hbm_gib", 1e15 * chip.hbm_bytes / GIB / peak),
        ("buffer MiB per tensor core", "glb_mib", chip.glb_bytes / MIB / chip.num_tc),
        ("buffer KiB per vector lane", "glb_mib", chip.glb_bytes / KIB / lanes),
        ("vector lanes per 1,000 multipliers", "num_vc", 1e3 * lanes / multipliers),
    ]
    if chip.area_chip_mm2 is not None:
        per_mm2 = peak / 1e12 / chip.area_chip_mm2
        found.append(("TFLOP/s per mm² of the area model", "num_tc", per_mm2))
    return found


def _ratios(chip: Accelerator, steps: Sequence[Step]) -> Iterator[Statement]:
    """State that ratios lie among those of chips that were built; what a step towards them does."""
    built = {name: ratios_of(own) for name, own in built_chips(chip).items()}
    for place, (what, axis, figure) in enumerate(ratios_of(chip)):
        found = {name: own[place][2] for name, own in built.items() if place < len(own)}
        low, high = (choose(found, key=found.__getitem__) for choose in (min, max))
        statement = stated(what, figure, found[low], found[high], f"built: {low}, {high}")
        yield with_step(statement, steps, axis, up=figure < statement.low)


def _power(engine: Engine, design: Design) -> Iterator[Statement]:
    """State that a device takes no more power than boards are rated for, in all and per area."""
    run, chip = engine.objective.best_run(0, design), design.accelerator
    power_w = run.evaluation.power_w_per_device + static_power_w(chip)
    rated = {name: own for name, own in built_chips(chip).items() if own.tdp_w is not None}
    most = max(rated, key=lambda name: rated[name].tdp_w or 0.0)
    yield stated("W per device", power_w, 0.0, rated[most].tdp_w or 0.0, f"built: {most}")
    per_mm2 = {
        name: (own.tdp_w or 0.0) / own.area_chip_mm2
        for name, own in rated.items()
        if own.area_chip_mm2 is not None
    }
    if chip.area_chip_mm2 is not None:
        densest, own = max(per_mm2, key=per_mm2.__getitem__), power_w / chip.area_chip_mm2
        what = "W per mm² of the area model"
        yield stated(what, own, 0.0, per_mm2[densest], f"built: {densest}")


def _halves(
    engine: Engine, design: Design, winner: Metrics, steps: Sequence[Step]
) -> Iterator[Statement]:
    """State that buffer, HBM and links are as large as they are for a reason: half would lose."""
    chip, cluster = design.accelerator, design.cluster
    slow = tuple(
        replace(level, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s / 2.0)
        for level in cluster.levels
    )
    small = replace(chip, glb_bytes=chip.glb_bytes // 2)
    narrow = replace(chip, hbm_bytes_per_s=chip.hbm_bytes_per_s / 2.0)
    for words, axis, other in (
        ("the buffer", "glb_mib", replace(design, accelerator=small)),
        ("the HBM's bandwidth", "hbm_gib", replace(design, accelerator=narrow)),
        ("the links", "network", replace(design, cluster=replace(cluster, levels=slow))),
    ):
        run = engine.objective.best_run(0, other)
        relative = run.evaluation.throughput_samples_per_s / winner.runs[0].throughput_samples_per_s
        what = f"throughput with half of {words}, relative"
        statement = stated(what, relative, 0.0, 1.0 - VALUE_BIN, "it must lose")
        yield with_step(statement, steps, axis, loss=1.0 - relative)
