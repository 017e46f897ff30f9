"""What is stated of a winner: limits are those of chips and runs, and a poor design fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze_opt.codec import data_rows
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.spec.axes import Scalar
from phaze_opt.validation.stated_run import evaluate_stated_run
from phaze_opt.whole_space.enumerating import enumerate_study
from studies.atlas import believable
from studies.atlas.believable import Believed, believed, built_chips
from studies.atlas.believed_page import believed_lines, believed_summary
from studies.atlas.measured import measured_runs
from studies.atlas.questions import Question
from studies.atlas.steps import Statement, Step, with_step
from studies.paper.searches import study_in
from studies.work import Work
from tests.studies.test_robustness import SPEC

QUESTION = Question("models", "small", SPEC)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Return the work of a run."""
    return Work(tmp_path_factory.mktemp("believed"), workers=1, tell=lambda line: None)


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the first runs of a file be read: each model has to be captured."""
    rows = list(data_rows("validation", "training.csv"))[:4]
    monkeypatch.setattr(believable, "data_rows", lambda room, name: rows)


@pytest.fixture(scope="module")
def ranked(work: Work) -> list[dict[str, Scalar]]:
    """Return all designs of the small space, the best first."""
    top = enumerate_study(study_in(work, SPEC), top=20).top
    return [dict(design.point) for design in top]


@pytest.fixture
def winner(work: Work, ranked: list[dict[str, Scalar]]) -> Believed:
    """Return what is stated of the winner."""
    return believed(work, QUESTION, ranked[0])


@pytest.fixture
def poor(work: Work, ranked: list[dict[str, Scalar]]) -> Believed:
    """Return what is stated of a design with small arrays and more HBM than any has for them."""
    small = [each for each in ranked if (each["pe_x"], each["hbm_gib"]) == (32, 100)]
    return believed(work, QUESTION, small[-1])


def named(own: Believed, words: str) -> Statement:
    """Return the statement whose name begins so."""
    (found,) = (each for each in own.statements if each.what.startswith(words))
    return found


def test_no_step_from_a_certified_winner_pays(
    winner: Believed, work: Work, ranked: list[dict[str, Scalar]]
) -> None:
    """Each loses, costs, or is not allowed; there are two for every axis of several values.

    The order in which the winner's values are written does not matter.
    """
    axes = SPEC.space.searched.values()
    assert len(winner.steps) == 2 * sum(len(axis.values) > 1 for axis in axes)
    assert not any(step.pays for step in winner.steps)
    backwards = dict(reversed(ranked[0].items()))
    assert believed(work, QUESTION, backwards) == winner
    assert named(winner, "steps of one axis").why_not == ""
    assert any("infeasible (area)" in step.words for step in winner.steps)


def test_a_step_from_a_worse_design_pays(poor: Believed) -> None:
    """The list would tell if a winner were none."""
    assert any(step.pays for step in poor.steps)
    assert "pay" in named(poor, "steps of one axis").why_not
    assert poor.failing


def test_a_statement_holds_just_where_its_figure_is_within(
    winner: Believed, poor: Believed
) -> None:
    """And says by how much it is outside, and what a step back would bring."""
    for statement in (*winner.statements, *poor.statements):
        within = statement.low <= statement.figure <= statement.high
        assert within == (not statement.why_not), statement
    outside = named(poor, "HBM bytes per")
    assert outside.figure > outside.high
    assert "a step of hbm_gib down, 80: " in outside.why_not


def test_what_is_outside_stays_so_for_a_reason(winner: Believed, poor: Believed) -> None:
    """Which is that the step back loses, takes area for nothing, or is not allowed."""
    assert not any(each.has_reason for each in winner.statements if not each.why_not)
    words = {step.words: step for step in poor.steps}
    for statement in poor.failing:
        _, _, told = statement.why_not.partition(", ")
        if told in words:
            step = words[told]
            for_nothing = step.faster <= 1.001 and step.larger > 1.0
            assert statement.has_reason == (step.faster < 0.999 or for_nothing), statement
        else:
            assert not statement.has_reason
    assert poor.unexplained
    for step in (*winner.steps, *poor.steps):
        allowed = "infeasible" not in step.words and step.words != "the axis ends"
        assert (step.faster > 0.0) == (step.larger > 0.0) == allowed


@pytest.mark.parametrize(
    ("step", "loss", "has_reason"),
    [
        (Step("glb_mib", False, "", 0.99, 0.98), 0.0, True),  # it loses
        (Step("glb_mib", False, "", 1.0, 1.02), 0.0, True),  # it takes area for nothing
        (Step("glb_mib", False, ""), 0.0, True),  # it does not exist
        (Step("glb_mib", False, "", 1.0, 0.98), 0.0, False),
        (Step("glb_mib", False, "", 1.01, 1.02), 0.0, False),
        (Step("glb_mib", False, "", 1.0, 0.98), 1e-4, True),  # half of it loses a little
        (Step("glb_mib", False, "", 1.0, 0.98, pays=True), 1e-4, False),
    ],
)
def test_what_is_a_reason(step: Step, loss: float, *, has_reason: bool) -> None:
    """A step that would mend a figure is none where it is as good and no larger."""
    outside = Statement("buffer", 0.5, 1.0, 2.0, "built", "0.5 is below 1")
    steps = [step, Step("num_tc", True, "", 0.9, 1.1)]
    assert with_step(outside, steps, "glb_mib", loss=loss).has_reason == has_reason
    within = replace(outside, figure=1.5, why_not="")
    assert with_step(within, steps, "glb_mib", loss=loss) == within


def test_what_is_stated_is_kept(
    work: Work, winner: Believed, ranked: list[dict[str, Scalar]]
) -> None:
    """Nothing is evaluated again, and what is read is what was found."""
    told: list[str] = []
    assert believed(replace(work, tell=told.append), QUESTION, ranked[0]) == winner and not told


def test_limits_are_of_chips_that_were_built(winner: Believed) -> None:
    """In the same process or a newer one."""
    chips = built_chips(load_accelerator(SPEC.space.base))
    assert {"h100", "tpuv6e", "mi300x"} <= {*chips} and {
        "a100-80",
        "tpuv4-lanes",
        "v100",
    }.isdisjoint(chips)
    assert {*built_chips(load_accelerator("tpuv4-lanes"))} > {*chips}
    ratio = named(winner, "buffer MiB per tensor core")
    of_chips = [chip.glb_bytes / 2**20 / chip.num_tc for chip in chips.values()]
    assert (ratio.low, ratio.high) == (min(of_chips), max(of_chips))
    assert ratio.figure == 16 / 8
    power = named(winner, "W per device")
    assert power.high == max(chip.tdp_w or 0.0 for chip in chips.values())


def test_measured_utilisation_is_that_of_the_evaluation_in_the_measured_time() -> None:
    """But for half of the attention, which a causal mask hides: of both, of products alone."""
    (row,) = list(data_rows("validation", "training.csv"))[:1]
    (measured,) = measured_runs([row]).runs
    measurement = ("table", "case", "trust", "repeats", "source")
    options = {name: text for name, text in row.items() if name not in measurement}
    run = evaluate_stated_run({**options, "measured_s": "", "measured_memory_bytes": ""})
    assert row["model"] == "gpt:layers=48,hidden=6144,heads=64,sequence=2048,vocab=51200"
    layers, hidden, sequence, vocab = 48, 6144, 2048, 51200
    attention = sequence / 6 / hidden
    whole = 1.0 + attention + vocab / 12 / hidden / layers  # Narayanan et al. 2021, equation 3
    expected = run.evaluation.mfu * run.time_s / float(row["measured_s"])
    expected *= 1.0 - attention * (sequence - 1) / 2 / sequence / whole
    assert (measured.models, measured.element) == ("dense", "bf16")
    assert measured.mfu == pytest.approx(expected, rel=1e-9)
    low = {**row, "trust": "low", "measured_s": "0.001"}
    assert measured_runs([row, low]).runs == (measured,)


def test_the_page_has_a_table_for_every_winner(winner: Believed, poor: Believed) -> None:
    """The summary counts those that pass everything, and names what the others fail."""
    text = "\n".join(believed_lines([poor], ["small"]))
    held = len(poor.statements) - len(poor.failing)
    assert f"### small: {held} of {len(poor.statements)} hold" in text
    mark = "" if poor.failing[0].has_reason else "*"
    assert f"| small | {held} of {len(poor.statements)} | {mark}{poor.failing[0].what}: " in text
    assert "###" not in "\n".join(believed_lines([poor], []))
    for step in poor.steps:
        assert f" {step.words} |" in text
    summary = believed_summary([winner, poor])
    passing = sum(not each.unexplained for each in (winner, poor))
    assert summary.startswith(f"{passing} of 2 winners pass the list")
    assert f"1 fail in {poor.unexplained[-1].what}" in summary
    assert believed_summary([winner]).startswith("1 of 1 winners pass the list")
