"""Lowers the bounds of a class of chips, as a wrong formula of arrays would, and verifies.

``python -m tests.whole_space.sabotage [SPEC] [--boxes] [--halved] [--classes 200] [--top 20]
[--seed 0]``

A class has the values of a design of the true top in some fields of the chip. Its bounds are
lowered while the certificate is made and while it is checked. Where that cuts a design of the top,
the check must refuse the certificate; the exit code is 1 where one is accepted.

With ``--boxes`` the bounds of single chips stay right, and those of boxes and regions are lowered
whose best rates are no worse than those of the design. With ``--halved`` all boxes are found by
halving, as in large spaces.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds import box_order
from phaze_opt.bounds.best_first import BestFirst
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.study_bounds import StudyBounds
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.spec.designs import Design, chip_of
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import StudySpec, read_spec
from phaze_opt.study.study import Study, create_study
from phaze_opt.whole_space.certificate import certify
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.enumerating import enumerate_study
from phaze_opt.whole_space.exhaustive import Enumeration, enumerate_space
from phaze_opt.whole_space.verifying import RefusedError, verify

FIELDS = ("num_tc", "pe_x", "pe_y", "num_vc", "pe_vc", "glb_bytes")
"""What may tell a class of chips from the others."""

LOWERED = 0.9
"""What is left of the bounds of the class."""

SMALL = StudySpec(
    name="small",
    model="bert-large",
    attention="eager",
    cluster="tpuv4-ici-flat",
    devices=16,
    global_batch=64,
    residency=False,
    overlap="none",
    tensor_parallel=(1, 2),
    space=Space.phaze(
        num_tc=(2, 16),
        num_vc=(4, 16),
        pe_x=(64, 256),
        pe_y=(64, 128),
        glb_mib=[8, 32],
        hbm_gib=[8, 32],
        microbatch=(1, 2),
        recompute=["none"],
    ),
)
"""A part of the paper's space, on few devices."""

Class = Mapping[str, float]
"""The values of some fields."""


@dataclass(frozen=True)
class Outcome:
    """What came of one class.

    Attributes
    ----------
    cut
        Whether the top lost a design.
    refusal
        What the check said; ``None`` where it found nothing.
    """

    of: Class
    cut: bool
    refusal: str | None


def top_of(engine: Engine, top: int) -> Enumeration:
    """Return the best designs, by arrays."""
    enumeration = enumerate_space(engine, None, top=top)
    assert enumeration is not None
    return enumeration


def drawn_class(
    study: Study, true_top: Enumeration, generator: random.Random, *, of_boxes: bool = False
) -> Class:
    """Draw a class that holds a design of the top."""
    winner = generator.choice(true_top.top)
    chip = chip_of(study.resolved.base, dict(winner.point))
    if of_boxes:
        elements = chip.num_tc * chip.pe_x * chip.pe_y
        return {"processing_elements": elements, "lanes": chip.num_vc * chip.pe_vc}
    fields = generator.sample(FIELDS, generator.randint(2, 4))
    return {name: getattr(chip, name) for name in sorted(fields)}


def _is_of(chip: Accelerator, of: Class) -> bool:
    return all(getattr(chip, name) == value for name, value in of.items())


def _may_hold(corner: Accelerator, of: Class) -> bool:
    """Whether the best rates of a region are no worse than those of a class of cores."""
    elements = corner.num_tc * corner.pe_x * corner.pe_y
    lanes = corner.num_vc * corner.pe_vc
    return elements >= of["processing_elements"] and lanes >= of["lanes"]


@contextmanager
def lowered(of: Class) -> Iterator[None]:
    """Lower the bounds of the chips of a class, or of the boxes of a class of cores."""
    right = StudyBounds.values
    of_boxes = "lanes" in of
    is_of = _may_hold if of_boxes else _is_of

    def wrong(self: StudyBounds, design: Design, some: BoundedChips) -> FloatArray:
        values = right(self, design, some)
        if some.rooflines is not of_boxes:
            return values
        left = np.array([LOWERED if is_of(chip, of) else 1.0 for chip in some.architectures])
        return np.asarray(values * left)

    setattr(StudyBounds, "values", wrong)  # noqa: B010
    try:
        yield
    finally:
        setattr(StudyBounds, "values", right)  # noqa: B010


def attempt(engine: Engine, true_top: Enumeration, top: int, of: Class) -> Outcome:
    """Enumerate and verify with wrong bounds of one class."""
    refusal = None
    with lowered(of):
        enumeration = top_of(engine, top)
        certificate = certify(BestFirst(engine.grid, engine.rule), enumeration, top)
        try:
            verify(certificate, engine, None)
        except RefusedError as error:
            refusal = str(error)
    points = [[design.point for design in answer.top] for answer in (enumeration, true_top)]
    return Outcome(of, points[0] != points[1], refusal)


def main(arguments: list[str]) -> int:
    """Try some classes, and say of each what came of it."""
    program = "python -m tests.whole_space.sabotage"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("spec", nargs="?", type=Path, help="of the study; a small one by default")
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--boxes", action="store_true")
    parser.add_argument("--halved", action="store_true")
    options: Any = parser.parse_args(arguments)
    generator = random.Random(options.seed)
    if options.halved:
        box_order.MOST_AT_ONCE, box_order.HALVED = 0, 8
    tally = {"refused": 0, "nothing cut": 0, "MISSED": 0}
    with tempfile.TemporaryDirectory(prefix="phaze-sabotage-") as folder:
        spec = SMALL if options.spec is None else read_spec(options.spec)
        study = create_study(spec, f"sqlite:///{folder}/a.db")
        true_top = enumerate_study(study, top=options.top)
        engine = Engine(study, study.evaluator)
        for number in range(options.classes):
            of = drawn_class(study, true_top, generator, of_boxes=options.boxes)
            one = attempt(engine, true_top, options.top, of)
            what = "MISSED" if one.cut else "nothing cut"
            what = what if one.refusal is None else "refused"
            tally[what] += 1
            print(f"{number + 1:4} {what:12} {dict(one.of)}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in tally.items()))
    return 1 if tally["MISSED"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
