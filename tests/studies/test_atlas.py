"""The atlas and folders of certified studies, small: answers are kept, figures are theirs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from phaze_opt.spec.freezing import check_names
from phaze_opt.spec.study_spec import StudySpec
from studies.atlas.answers import Answer, answer
from studies.atlas.page import page
from studies.atlas.questions import BITS, KNOWN_CHIPS, Question, alone, questions
from studies.certified import find, main
from studies.paper.settings import changed
from studies.work import Work

TINY = "gpt:layers=2,hidden=512,heads=8,sequence=256,vocab=8000"
AXES = {
    **{"num_tc": [8, 16], "num_vc": [8], "pe_x": [64], "pe_y": [128], "pe_vc": [512]},
    **{"glb_mib": [32], "hbm_gib": [40, 80], "microbatch": [1], "recompute": ["none"]},
}
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


@pytest.fixture(scope="module")
def small() -> StudySpec:
    """Return a question with few designs."""
    return changed(next(questions()).spec, "small", AXES, **FIELDS)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Return the work of a run."""
    return Work(tmp_path_factory.mktemp("atlas"), workers=1, tell=lambda line: None)


@pytest.fixture(scope="module")
def answers(work: Work, small: StudySpec) -> list[Answer]:
    """Return the answers of a model, of fewer bits, and of more devices."""
    axes = {**BITS.axes, "precision": ["bf16", "mxfp8"]}
    asked = [
        Question("models", "small", small),
        Question("bits", "small", changed(small, "bits", axes), small.name),
        Question("devices", "16 devices", changed(small, "on-16", devices=16), small.name),
    ]
    return [
        answer(work, each, chip_first=each.part == "models", check=each.part == "models")
        for each in asked
    ]


def test_nothing_beats_a_winner(answers: list[Answer]) -> None:
    """Neither a chip that was chosen before its placement; and fewer bits are a choice more."""
    first, bits, _ = answers
    assert all(each.proven.status == "certified" for each in answers)
    assert first.chip_first is not None and first.checks and bits.checks is None
    assert first.chip_first.samples_per_s <= first.proven.trained.samples_per_s
    assert bits.proven.trained.samples_per_s >= first.proven.trained.samples_per_s
    assert [known.chip for known in first.known] == [*KNOWN_CHIPS]


def test_answers_are_kept(work: Work, answers: list[Answer]) -> None:
    """Asked again, nothing is computed."""
    first = answers[0]
    told: list[str] = []
    again = answer(replace(work, tell=told.append), first.question, chip_first=True, check=True)
    assert again == first and not told


def test_every_figure_of_the_page_is_an_answer(answers: list[Answer]) -> None:
    """Rows of all parts stand there, and each is set against its own."""
    text = page(answers)
    assert "3 of 3 optima are certified" in text
    for each in answers:
        assert f"| {each.question.spec.name} | {each.proven.points:,} |" in text
    ratio = answers[1].proven.trained.samples_per_s / answers[0].proven.trained.samples_per_s
    assert f"| {ratio:.3f} | " in text


def test_every_question_can_be_asked() -> None:
    """Names are told apart, what a question is set against comes before it, and specs are valid."""
    asked = list(questions())
    names = [each.spec.name for each in asked]
    assert len({*names}) == len(names)
    for place, each in enumerate(asked):
        assert not each.against or each.against in names[:place]
        check_names(each.spec)
    check_names(alone(asked[0].spec))


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
