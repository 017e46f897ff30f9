"""The atlas and folders of certified studies, small: answers are kept, figures are theirs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from phaze_opt.codec import data_rows
from phaze_opt.errors import InputError
from phaze_opt.evaluation import COST_MODEL_VERSION
from phaze_opt.spec.freezing import check_names
from phaze_opt.spec.study_spec import ConstraintSpec, StudySpec
from phaze_opt.whole_space.verification import RefusedError
from studies.atlas import __main__ as program
from studies.atlas import believable
from studies.atlas import questions as asking
from studies.atlas.answers import Answer, Checked, Proven, answer, check, common_answer
from studies.atlas.believed_page import believed_summary
from studies.atlas.examined import examine
from studies.atlas.figures import picture
from studies.atlas.page import page
from studies.atlas.questions import (
    BITS,
    BUDGETS,
    KNOWN_CHIPS,
    Asked,
    Question,
    Variant,
    alone,
    common_studies,
    questions,
    read_base,
)
from studies.atlas.scheduling import WAYS
from studies.certified import find, main
from studies.paper.settings import changed
from studies.work import Work

TINY = "gpt:layers=2,hidden=512,heads=8,sequence=256,vocab=8000"
AXES = {
    **{"num_tc": [8, 16], "num_vc": [8], "pe_x": [64], "pe_y": [128], "pe_vc": [512]},
    **{"glb_mib": [32], "hbm_gib": [40, 80], "microbatch": [1], "recompute": ["none"]},
}
_LIMITS = (ConstraintSpec(max_cost_usd=4e5), ConstraintSpec(max_power_w_rack=3e4))
FIELDS = {"model": TINY, "devices": 8, "global_batch": 16, "tensor_parallel": (1, 2)}

STUDY = f"""
name = "{{name}}"
model = "{TINY}"
cluster = "flat-4GiB"
devices = 8
global_batch = 16
[space]
base = "tpuv4-lanes"
num_tc = {{cores}}
pe_x = [64, 128]
"""


@dataclass(frozen=True)
class Noted:
    """An answer, and the process that found it."""

    number: int
    process: int


@pytest.fixture(scope="module")
def small() -> StudySpec:
    """Return a question with few designs."""
    return changed(next(questions()).spec, "small", AXES, **FIELDS)


def _within(small: StudySpec, budget: Variant, limit: ConstraintSpec) -> StudySpec:
    """Return a question of few designs within a budget of eight devices."""
    axes = {"devices": [4, 8]} if "devices" in budget.axes else {}
    return changed(small, budget.name, axes, **{**budget.fields, "constraints": limit})


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Return the work of a run."""
    return Work(tmp_path_factory.mktemp("atlas"), workers=1, tell=lambda line: None)


@pytest.fixture(scope="module", autouse=True)
def few_rows() -> Iterator[None]:
    """Let only the first measured runs be read: each of their models has to be captured."""
    rows = list(data_rows("validation", "training.csv"))[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(believable, "data_rows", lambda room, name: rows)
        yield


@pytest.fixture(scope="module")
def answers(work: Work, small: StudySpec) -> list[Answer]:
    """Return the answers of a model, of fewer bits, and of more devices."""
    axes = {**BITS.axes, "precision": ["bf16", "mxfp8"]}
    asked = [
        Question("models", "small", small, beside=True, chip_first=True, believed=True),
        Question("bits", "small", changed(small, "bits", axes), small.name, believed=True),
        Question("devices", "16 devices", changed(small, "on-16", devices=16), small.name),
    ]
    asked[0] = replace(asked[0], examined=True)
    budgets = [
        Question(budget.name, "small", _within(small, budget, limit), small.name, beside=True)
        for budget, limit in zip(BUDGETS, _LIMITS, strict=True)
    ]
    first, *others = [answer(work, each) for each in [*asked, *budgets]]
    return [*check(work, [first]), *others]


def test_nothing_beats_a_winner(answers: list[Answer]) -> None:
    """Neither a chip that was chosen before its placement; and fewer bits are a choice more."""
    first, bits = answers[:2]
    assert all(each.proven.status == "certified" for each in answers)
    assert first.chip_first is not None and first.checks and bits.checks is None
    assert first.chip_first.samples_per_s <= first.proven.trained.samples_per_s
    assert bits.proven.trained.samples_per_s >= first.proven.trained.samples_per_s
    assert [known.chip for known in first.known] == [*KNOWN_CHIPS]


def test_answers_are_kept(work: Work, answers: list[Answer]) -> None:
    """Asked again, nothing is computed."""
    first = answers[0]
    told: list[str] = []
    silent = replace(work, tell=told.append)
    again = [answer(silent, first.question)]
    assert check(silent, again) == check(silent, again, kept=True) == [first] and not told
    (other,) = check(silent, [answers[1]], kept=True)
    assert other.checks is None and other.proven.status == "certified" and not told


OTHERS: dict[str, Callable[[Proven], Proven]] = {
    "points": lambda proven: replace(proven, points=proven.points + 1),
    "evaluated": lambda proven: replace(proven, evaluated=proven.evaluated + 1),
    "values": lambda proven: replace(proven, values={**proven.values, "pe_x": 32}),
    "speed": lambda proven: replace(proven, trained=replace(proven.trained, samples_per_s=1.0)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_not_certified_is_refused(work: Work, answers: list[Answer], what: str) -> None:
    """An answer whose space has another optimum, or another number of designs."""
    other = replace(answers[0], proven=OTHERS[what](answers[0].proven))
    with pytest.raises(RefusedError, match="is best"):
        check(work, [other])


def test_answers_travel_in_one_file(work: Work, answers: list[Answer], tmp_path: Path) -> None:
    """Another run begins with them and computes nothing; those of other costs stay behind."""
    path = tmp_path / "answers.jsonl"
    stale = work.folder / "parts" / "stale.json"
    kept = (work.folder / "parts" / f"prove-{answers[0].question.spec.name}.json").read_text()
    version = f'"cost_model":"{COST_MODEL_VERSION}"'
    assert version in kept
    stale.write_text(kept.replace(version, '"cost_model":"1"'))
    work.write_all(path)
    stale.unlink()
    told: list[str] = []
    other = Work(tmp_path / "other", workers=1, tell=told.append)
    other.take_in(tmp_path / "none")
    other.take_in(path)
    again = [answer(other, each.question) for each in answers]
    assert check(other, again, kept=True) == answers and not told
    for checks in (False, True):
        assert other.spent_s(checks) == pytest.approx(work.spent_s(checks)) and other.spent_s(
            checks
        )
    # What another version kept gives way; a line that is no answer is refused, and nothing kept.
    (other.folder / "parts" / f"prove-{answers[0].question.spec.name}.json").write_text(
        kept.replace(version, '"cost_model":"1"')
    )
    other.take_in(path)
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_bytes(path.read_bytes() + b"{}\n")
    empty = Work(tmp_path / "empty", workers=1)
    with pytest.raises(InputError, match=f"line {path.read_bytes().count(10) + 1}"):
        empty.take_in(damaged)
    assert not [*(empty.folder / "parts").iterdir()]
    other.write_all(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()


def test_a_part_has_the_seconds_of_its_steps(tmp_path: Path) -> None:
    """Of those that were kept before it began, and once of those that it computed."""
    work = Work(tmp_path, workers=1, tell=lambda line: None)

    def busy() -> Checked:
        end_s = time.process_time() + 0.3
        while time.process_time() < end_s:
            pass
        return Checked(1)

    def whole() -> Checked:
        steps = [work.answer(f"step-{name}", name, Checked, busy) for name in ("a", "b")]
        return Checked(len(steps))

    work.answer("step-a", "a", Checked, busy)
    work.answer("whole", "c", Checked, whole)
    steps_s = work.cpu_s["step-a"] + work.cpu_s["step-b"]
    assert steps_s <= work.cpu_s["whole"] < steps_s + 0.25
    assert work.spent_s(checks=False, steps=("step-",)) == work.cpu_s["whole"]


def test_every_figure_of_the_page_is_an_answer(answers: list[Answer]) -> None:
    """Rows of all parts stand there, and each is set against its own."""
    text = page(answers)
    assert "5 of 5 optima are certified" in text
    stated = [each.believed for each in answers if each.believed is not None]
    assert [each.words for each in stated] == ["small", "bits: small"]
    assert believed_summary(stated) in text
    for own in stated:
        held = len(own.statements) - len(own.failing)
        assert f"| {own.words} | {held} of {len(own.statements)} |" in text
        head = f"### {own.words}: {held} of {len(own.statements)} hold"
        assert (head in text) == (own is stated[0])
    for each in answers:
        assert f"| {each.question.spec.name} | {each.proven.points:,} |" in text
    ratio = answers[1].proven.trained.samples_per_s / answers[0].proven.trained.samples_per_s
    assert f"| {ratio:.3f} | " in text


@pytest.mark.parametrize(
    ("gap", "words"), [(0.0, "certified, without the places below it"), (0.02, "gap 2.0%")]
)
def test_an_optimum_needs_no_order_below_it(answers: list[Answer], gap: float, words: str) -> None:
    """A search that the time ended may know that no other design is better."""
    models = [each for each in answers if each.question.part == "models"]
    ended = [replace(models[0], proven=replace(models[0].proven, status="time_limit", gap=gap))]
    told = page(ended + models[1:], [])
    assert f"| {words} |" in told
    optima = len(models) - (gap > 0.0)
    assert f"{optima} of {len(models)} optima are certified" in told
    assert (f"({words})" in told) == ("at most 2.0% above" in told) == (gap > 0.0)


def test_no_design_that_was_left_out_is_better(
    work: Work, small: StudySpec, answers: list[Answer]
) -> None:
    """All of a small space are looked at; beside another design than the best, some are better."""
    examined, proven = answers[0].examined, answers[0].proven
    assert examined is not None and (examined.better, examined.above) == (0, 0)
    assert examined.designs == proven.points - 1 >= examined.feasible > 0
    assert 0.0 < examined.best <= 1.0
    worse = changed(small, "worse")
    other = {**proven.values, "num_tc": 8 if proven.values["num_tc"] == 16 else 16}
    assert examine(work, worse, other).better > 0
    assert examine(work, changed(small, "few"), proven.values, designs=2).designs == 2


def test_exact_schedules_are_the_fastest(answers: list[Answer]) -> None:
    """Of all ways, on every number of cores; with one core an operator alone leaves the other."""
    found = answers[0].scheduled
    assert found is not None
    for way in WAYS:
        assert all(0.0 < own <= 1.0 for own in found.relative[way])
    assert {*found.relative[WAYS[-1]]} == {1.0}
    text = page(answers)
    assert f"{min(found.relative[WAYS[0]]):.3f} ({WAYS[0]})" in text


def test_the_picture_has_every_known_chip(answers: list[Answer]) -> None:
    """Beside the winners of each budget; it is the same for the same answers."""
    drawn = picture(answers)
    assert drawn == picture(answers)
    for words in (*KNOWN_CHIPS, "area of an H100", "dollars of 1,024 H100", "time of the winners"):
        assert words in drawn


def _noted(work: Work, number: int) -> Noted:
    """Keep the process in which a number was asked for."""
    return work.answer(f"note-{number}", number, Noted, lambda: Noted(number, os.getpid()))


def test_processes_keep_what_they_find(tmp_path: Path) -> None:
    """Each item in its own process, in the order of the items, and once."""
    found = Work(tmp_path, workers=2).in_processes(_noted, [7, 5])
    assert [each.number for each in found] == [7, 5]
    assert len({os.getpid(), *(each.process for each in found)}) == 3
    assert Work(tmp_path, workers=1).in_processes(_noted, [7, 5]) == found


def test_budgets_are_kept(answers: list[Answer]) -> None:
    """By winners and by the known chips beside them, of which there are as many as is best."""
    dollars, watts = answers[3:]
    for each in (dollars.proven.trained, *dollars.known):
        assert each.tco_usd <= 4e5 and each.devices in (0, 4, 8)
    for each in (watts.proven.trained, *watts.known):
        assert each.wall_power_w * 32 <= 3e4
    assert any(each.samples_per_s for each in dollars.known)


def test_a_common_chip_is_no_better_than_its_own(
    work: Work, answers: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the models that it is made for, of which one has a layer more."""
    other = TINY.replace("layers=2", "layers=3")
    monkeypatch.setattr(asking, "MODELS", (Asked(TINY), Asked(other)))
    base = changed(read_base(), "few", AXES, devices=8, global_batch=16, tensor_parallel=(1, 2))
    first, (spec,) = answers[0], common_studies(base)
    common = common_answer(work, spec, [first.question])
    (trained,) = common.trained
    assert common.winner.status == "certified"
    assert 0.0 < trained.samples_per_s <= first.proven.trained.samples_per_s
    assert common.models == (TINY, other)
    assert "## One chip for many" in page([first], [common])


def test_every_question_can_be_asked() -> None:
    """Names are told apart, what a question is set against comes before it, and specs are valid."""
    asked = list(questions())
    names = [each.spec.name for each in asked]
    assert len({*names}) == len(names)
    for place, each in enumerate(asked):
        assert not each.against or each.against in names[:place]
        check_names(each.spec)
    check_names(alone(asked[0].spec))
    for spec in common_studies(read_base()):
        check_names(spec)


def test_a_folder_is_enumerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page begins with what stands about it, and has what is proven."""
    (tmp_path / "ABOUT.md").write_text("# Two chips\n")
    for name, cores in {"a": "[8]", "a-more": "[8, 16]"}.items():
        (tmp_path / f"{name}.toml").write_text(STUDY.format(name=name, cores=cores))
    monkeypatch.setattr("sys.argv", ["certified", str(tmp_path), "--work", str(tmp_path / "w")])
    main()
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.startswith("# Two chips\n") and "× a |" in text
    assert (tmp_path / "a.csv").read_text().startswith("place,samples_per_s,area_mm2,num_tc")
    found = find(tmp_path / "a.toml", f"sqlite:///{tmp_path / 'w' / 'studies.db'}", 1)
    assert found.name == "a" and found.enumeration.points == 2


def test_the_program_ranks_again_where_that_is_asked(
    work: Work, answers: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of the atlas alone; numbers below 1 are refused before anything is enumerated."""
    asked = replace(answers[0].question, words="llama3-8b")
    monkeypatch.setattr(program, "questions", lambda: [asked])
    given = ["atlas", "--workers", "1", "--work", str(work.folder), "--output", str(work.folder)]
    monkeypatch.setattr("sys.argv", [*given, "--robustness", "--draws", "2", "--top", "2"])
    program.main()
    assert "| llama3-8b | 2 | 2 | " in (work.folder / "RESULTS.md").read_text()
    assert (work.folder / "answers.jsonl").read_bytes().count(b"\n") > 2
    other = Question("bits", "other", changed(asked.spec, "other"), asked.spec.name)
    monkeypatch.setattr(program, "questions", lambda: [asked, other])
    monkeypatch.setattr("sys.argv", [*given, "--kept"])
    program.main()
    text = (work.folder / "RESULTS.md").read_text()
    assert f"Not answered yet, 1 of 2: `{other.spec.name}`." in text
    for wrong in (["--draws", "0"], ["--top", "few"], ["--robustness", "llama3"]):
        monkeypatch.setattr("sys.argv", [*given, *wrong])
        with pytest.raises(SystemExit) as stopped:
            program.main()
        assert stopped.value.code == 2
