"""Answers set against each other, and written in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phaze_opt.spec.axes import Scalar
from studies.atlas.answers import Answer, Trained

CHIP_AXES = ("num_tc", "pe_x", "pe_y", "num_vc", "pe_vc", "glb_mib", "hbm_gib")


def relative(trained: Trained | None, answer: Answer) -> float:
    """Return a throughput relative to the optimum of a question; 0 where it does not fit."""
    return 0.0 if trained is None else trained.samples_per_s / answer.proven.trained.samples_per_s


def relative_words(trained: Trained | None, answer: Answer) -> str:
    """Return what `relative` does, for tables."""
    reached = relative(trained, answer)
    return f"{reached:.3f}" if reached else "does not fit"


def base_of(answer: Answer, answers: Sequence[Answer]) -> Answer:
    """Return the answer that one is set against."""
    return next(each for each in answers if each.question.spec.name == answer.question.against)


def times_base(answer: Answer, answers: Sequence[Answer]) -> float:
    """Return the throughput of an answer over that of the one that it is set against."""
    base = base_of(answer, answers)
    return answer.proven.trained.samples_per_s / base.proven.trained.samples_per_s


def chip_words(values: Mapping[str, Scalar]) -> str:
    """Return a chip in a few words."""
    return "{} × {}×{}, {} × {}, {} MiB, {} GiB".format(*(values[name] for name in CHIP_AXES))


def is_optimum(answer: Answer) -> bool:
    """Whether no other design is better, though the order of those below it may be open."""
    # A gap of 0 leaves nothing in the bin of the best value.
    return answer.proven.status == "certified" or answer.proven.gap == 0.0


def proof_words(answer: Answer) -> str:
    """Say whether an optimum is certified, else its gap."""
    proven = answer.proven
    if proven.status == "certified":
        return proven.status
    if is_optimum(answer):
        return "certified, without the places below it"
    return "no bound yet" if proven.gap is None else f"gap {proven.gap:.1%}"
