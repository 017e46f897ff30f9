"""Certificates: what is written verifies, and what is altered is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.bounds import box_order
from phaze_opt.errors import ConflictError, InputError
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import AreaSpec, StudySpec
from phaze_opt.study.study import Study, create_study
from phaze_opt.whole_space import verification, verifying, verifying_boxes, verifying_chips
from phaze_opt.whole_space.certificate import Certificate, read_certificate, write_certificate
from phaze_opt.whole_space.enumerating import (
    certificate_of,
    certify_again,
    enumerate_study,
    verify_certificate,
)
from phaze_opt.whole_space.exhaustive import Enumeration, enumerate_space
from phaze_opt.whole_space.verifying import RefusedError, verify
from tests.study.fakes import TOY, toy_spec
from tests.whole_space.enumerations import CASES, RUN, engine_of
from tests.whole_space.sabotage import SMALL, attempt, drawn_class

TOP = 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Return a study of a model that is evaluated in milliseconds."""
    space = Space("tpuv4-lanes", num_tc=[2, 4], pe_x=[64, 128], hbm_gib=[16, 32], microbatch=(1, 2))
    url = f"sqlite:///{tmp_path_factory.mktemp('tiny') / 'a.db'}"
    return create_study(toy_spec(space=space, baselines=()), url, workload=TOY)


@pytest.fixture(scope="module")
def made(tiny: Study) -> Certificate:
    """Return the certificate of one study."""
    return certificate_of(tiny, enumerate_study(tiny, top=TOP), TOP)


@pytest.mark.parametrize("name", ["today", "several"])
def test_what_is_written_verifies(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the file alone."""
    monkeypatch.setattr(verifying, "SAMPLE", 5)
    spec = StudySpec(**({"name": name} | RUN | CASES[name]))
    study = create_study(spec, f"sqlite:///{tmp_path / 'a.db'}")
    enumeration = enumerate_study(study, top=TOP)
    certificate = certificate_of(study, enumeration, TOP)
    write_certificate(tmp_path / "a.json", certificate)
    read = read_certificate(tmp_path / "a.json")
    assert read == certificate
    checks = verify_certificate(read)
    assert all(0 <= check.checked <= check.of for check in checks)
    assert sum(box.chips for box in read.boxes) * len(read.options) <= read.points


def test_a_study_is_certified_again(
    tiny: Study, made: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same certificate, from one enumeration that knows of no other, and the other checks."""
    counted: list[int] = []

    def count(*given: Any, **named: Any) -> Enumeration | None:
        found = enumerate_space(*given, **named)
        counted.append(0 if found is None else found.evaluated)
        return found

    monkeypatch.setattr(verification, "enumerate_space", count)
    certificate, checks = certify_again(tiny, TOP, workloads=(TOY,))
    assert certificate == made and counted == [made.evaluated]
    # Of two enumerations one check more is made: that they are equal.
    whole = verify_certificate(made, workloads=(TOY,))
    (more,) = [each for each in whole if each not in checks]
    assert checks == [each for each in whole if each != more]
    assert more.what == "evaluated points" and more.checked == made.evaluated


CHANGES: dict[str, Callable[[Certificate], Certificate]] = {
    "a box is missing": lambda made: replace(made, boxes=made.boxes[1:]),
    "a box is there twice": lambda made: replace(made, boxes=(*made.boxes, made.boxes[0])),
    "chips of a box": lambda made: _box(made, chips=made.boxes[0].chips + 1),
    "area of a box": lambda made: _box(made, least_mm2=made.boxes[0].least_mm2 * 1.001),
    "rates of a box": lambda made: _box(made, rates={**made.boxes[0].rates, "lanes": 1.0}),
    "a bound": lambda made: _box(made, bounds=((1.0,) * 2, *made.boxes[0].bounds[1:])),
    "a tighter bound": lambda made: _box(made, bounds=_scaled(made, 0.999)),
    "a looser bound": lambda made: _box(made, bounds=_scaled(made, 1.001)),
    "bounds of a box": lambda made: _box(made, bounds=made.boxes[0].bounds[1:]),
    "an opened box": lambda made: replace(
        made, boxes=tuple(replace(box, opened=()) for box in made.boxes)
    ),
    "points": lambda made: replace(made, points=made.points + 1),
    "bounded": lambda made: replace(made, bounded=made.bounded - 1),
    "feasible": lambda made: replace(made, feasible=made.feasible - 1),
    "evaluated": lambda made: replace(made, evaluated=made.evaluated + 5, bounded=made.bounded - 5),
    "infeasible": lambda made: replace(made, infeasible_proven=made.infeasible_proven + 1),
    "asked": lambda made: replace(made, asked=made.asked + 1),
    "last": lambda made: replace(made, last=None),
    "options": lambda made: replace(made, options=made.options[1:]),
    "order of the top": lambda made: replace(made, top=made.top[::-1]),
    "value": lambda made: replace(
        made, top=(replace(made.top[0], values=(made.top[0].values[0] * 1.01,)), *made.top[1:])
    ),
    "a better design": lambda made: replace(made, top=made.top[1:], asked=2),
    "another study": lambda made: replace(made, study=replace(made.study, area_limit_mm2=100.0)),
}


def _box(certificate: Certificate, **changes: Any) -> Certificate:
    first, *others = certificate.boxes
    return replace(certificate, boxes=(replace(first, **changes), *others))


def _scaled(certificate: Certificate, factor: float) -> tuple[tuple[float, ...], ...]:
    first, *others = certificate.boxes[0].bounds
    return (tuple(factor * bound for bound in first), *others)


@pytest.mark.parametrize("what", CHANGES)
def test_an_altered_certificate_is_refused(
    what: str, made: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its checksum, and with a right checksum by what is computed again."""
    monkeypatch.setattr(verifying, "SAMPLE", 5)
    altered = CHANGES[what](made)
    write_certificate(tmp_path / "a.json", altered)
    with pytest.raises(InputError, match="altered"):
        read_certificate(tmp_path / "a.json")
    altered = replace(altered, checksum=altered.content)
    with pytest.raises(RefusedError, match="refused"):
        verify_certificate(altered, workloads=(TOY,))


def test_other_versions_and_unfinished_answers(
    made: Certificate, tiny: Study, tmp_path: Path
) -> None:
    """Another cost model is no fraud; without bounds or the end there is nothing to certify."""
    other = replace(made, study=replace(made.study, cost_model_version="0"))
    with pytest.raises(ConflictError, match="version 0"):
        verify_certificate(other)
    newer = replace(made, format=99)
    write_certificate(tmp_path / "a.json", replace(newer, checksum=newer.content))
    with pytest.raises(InputError, match="format 99"):
        read_certificate(tmp_path / "a.json")
    unfinished = enumerate_study(tiny, top=4, time_limit_s=0.0)
    unbounded = enumerate_study(tiny, top=1, bounds=False)
    for enumeration in (unfinished, unbounded):
        with pytest.raises(InputError, match="finished enumeration"):
            certificate_of(tiny, enumeration, 1)


def test_samples_of_large_spaces(made: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not every chip is looked at alone, the numbers are the same."""
    monkeypatch.setattr(verifying_boxes, "MOST_SINGLE_CHIPS", 3)
    monkeypatch.setattr(verifying_boxes, "MOST_SCALAR_CELLS", 2)
    whole = {check.what: check for check in verify_certificate(made, workloads=(TOY,))}
    assert whole["bounds of boxes"].checked == 2
    chips = "chips of opened boxes, in plain Python"
    assert whole[chips].checked == whole[chips].of > 2
    monkeypatch.setattr(verifying_chips, "MOST_BOUNDS", 2)
    some = {check.what: check for check in verify_certificate(made, workloads=(TOY,))}
    assert 0 < some[chips].checked <= some[chips].of == whole[chips].of


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Enumeration]:
    """Return a study of a part of the paper's space, and its true top."""
    study = create_study(SMALL, f"sqlite:///{tmp_path_factory.mktemp('small') / 'a.db'}")
    return study, enumerate_study(study, top=TOP)


@pytest.mark.parametrize("seed", range(4))
def test_wrong_bounds_of_a_class_of_chips_are_found(
    seed: int, small: tuple[Study, Enumeration], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arrays of the check are as wrong as those that made the certificate."""
    monkeypatch.setattr(verifying, "SAMPLE", 0)
    study, true_top = small
    of = drawn_class(study, true_top, random.Random(seed))
    outcome = attempt(engine_of(study), true_top, TOP, of)
    assert outcome.cut
    assert outcome.refusal is not None and "not of the top" in outcome.refusal


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_wrong_bounds_of_a_class_of_boxes_are_found(
    seed: int,
    halved: bool,
    small: tuple[Study, Enumeration],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plain Python bounds each box, and each region where boxes are halved."""
    if halved:
        monkeypatch.setattr(box_order, "MOST_AT_ONCE", 0)
        monkeypatch.setattr(box_order, "HALVED", 4)
    study, true_top = small
    of = drawn_class(study, true_top, random.Random(seed), of_boxes=True)
    outcome = attempt(engine_of(study), true_top, TOP, of)
    assert outcome.refusal is not None and "a bound of a box" in outcome.refusal


def test_right_bounds_are_not_refused(
    small: tuple[Study, Enumeration], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few chips that are closed come near the top, and each is evaluated."""
    monkeypatch.setattr(verifying, "SAMPLE", 5)
    study, true_top = small
    certificate = certificate_of(study, true_top, TOP)
    checks = {check.what: check for check in verify(certificate, engine_of(study), None)}
    plain = checks["chips of opened boxes, in plain Python"]
    near = checks["closed designs nearest to the top"]
    assert plain.checked == plain.of and near.checked == near.of < plain.of // 4


@pytest.mark.parametrize("name", ["shared-experts", "folded-experts"])
def test_a_space_of_experts_and_precisions_is_verified(tmp_path: Path, name: str) -> None:
    """What replicas exchange of experts, and casts to fewer bits, are bounded in plain Python."""
    spec = StudySpec(**({"name": name} | RUN | CASES[name]))
    study = create_study(spec, f"sqlite:///{tmp_path / 'a.db'}")
    found = enumerate_study(study, top=TOP)
    assert found is not None and found.status == "certified"
    checks = verify(certificate_of(study, found, TOP), engine_of(study), None)
    assert all(check.checked > 0 for check in checks if check.of > 0)


def test_copies_that_a_chip_needs_are_bounded_too(tmp_path: Path) -> None:
    """On a chip whose products read fp8 in every layout, with one copy and with two of them."""
    own = {
        "model": "llama:layers=3,hidden=1024,heads=8,kv_heads=4,ffn=2048,sequence=512,vocab=8000",
        "cluster": "dgx-b200",
        "optimizer": "adam",
        "precision": "fp8",
        "baselines": ("b200",),
        "area": AreaSpec(max_mm2=1e5),
        "space": Space(
            "b200",
            num_tc=[74, 148],
            hbm_gib=[0.5, 8],
            fp8_transposes=[False, True],
        ),
    }
    study = create_study(
        StudySpec(**({"name": "copies"} | RUN | own)), f"sqlite:///{tmp_path / 'a.db'}"
    )
    found = enumerate_study(study, top=TOP)
    assert found is not None and found.status == "certified"
    assert dict(found.top[0].point)["fp8_transposes"] is False
    checks = verify(certificate_of(study, found, TOP), engine_of(study), None)
    assert all(check.checked > 0 for check in checks if check.of > 0)
