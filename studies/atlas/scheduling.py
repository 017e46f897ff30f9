"""Where exact schedules pay: models on chips of few and of many cores, scheduled in three ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.spec.designs import chip_of
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.study.baselines import train_at_best
from studies.atlas.markdown import table
from studies.atlas.questions import HBM_RATIO
from studies.paper.toggles import scheduled
from studies.work import Work

WAYS = ("one operator at a time", "list schedules", "exact schedules")
"""Of `studies.paper.toggles.WAYS`; the last one is the reference."""
ARRAYS = ((1, 256, 256), (2, 256, 256), (4, 256, 256), (8, 128, 256), (16, 128, 128))
"""Cores of each type, with the edges of the arrays: from four cores on, as many multipliers."""
_HBM_GIB = 120.0
_REST = {"pe_vc": 1024, "glb_mib": 32, "hbm_gib": _HBM_GIB, "hbm_gb_per_s": HBM_RATIO * _HBM_GIB}


@dataclass(frozen=True)
class Scheduled:
    """A model on chips with more and more cores.

    Attributes
    ----------
    relative
        Throughput over that with exact schedules, for each of `ARRAYS`, by way; 0 where the model
        does not fit.
    """

    relative: Mapping[str, tuple[float, ...]]


def schedules(work: Work, spec: StudySpec) -> Scheduled:
    """Train a model on `ARRAYS` with every way to schedule, unless that was done.

    Placement and options are the best of each way.
    """

    def found() -> Scheduled:
        base = load_accelerator(spec.space.base)
        chips = [
            chip_of(base, {"num_tc": cores, "num_vc": cores, "pe_x": x, "pe_y": y, **_REST})
            for cores, x, y in ARRAYS
        ]
        reached = {way: _reached(spec, chips, way) for way in WAYS}
        exact = reached[WAYS[-1]]
        return Scheduled(
            {
                way: tuple(
                    own / most if most else 0.0 for own, most in zip(each, exact, strict=True)
                )
                for way, each in reached.items()
            }
        )

    return work.answer(f"schedules-{spec.name}", [spec, ARRAYS, _REST], Scheduled, found)


def _reached(spec: StudySpec, chips: Sequence[Accelerator], way: str) -> list[float]:
    """Return samples per second on some chips; 0 where a model does not fit."""
    with scheduled(way):
        runs = train_at_best(spec, chips)
    return [0.0 if run is None else run.evaluation.throughput_samples_per_s for run in runs]


def schedules_lines(found: Mapping[str, Scheduled]) -> Iterator[str]:
    """Yield the section of the page.

    Parameters
    ----------
    found
        By the words of the question.
    """
    least = {
        way: min(value for own in found.values() for value in own.relative[way] if value)
        for way in WAYS[:-1]
    }
    yield "## Where exact schedules pay"
    yield ""
    yield (
        "Throughput relative to exact schedules, on chips with so many tensor and vector cores "
        f"({_HBM_GIB:g} GiB of HBM, {_REST['glb_mib']} MiB), each with its best placement: first "
        "with one operator at a time, then with list schedules. At worst these reach "
        + " and ".join(f"{value:.3f} ({way})" for way, value in least.items())
        + ". An operator may run on one core or on all cores of its type. Above 1, the exact "
        "search has left a schedule open."
    )
    yield ""
    head = [f"{cores} × {x}×{y}" for cores, x, y in ARRAYS]
    rows = [
        [
            words,
            *(
                " / ".join(f"{own.relative[way][place]:.3f}" for way in WAYS[:-1])
                if own.relative[WAYS[-1]][place]
                else "does not fit"
                for place in range(len(ARRAYS))
            ),
        ]
        for words, own in found.items()
    ]
    yield from table(("model", *head), rows)
