from collections.abc import Sequence

import numpy as np

from phaze_opt.scheduling.instance import Instance
from phaze_opt.scheduling.reduction import build_instance, contracted_ancestors, series_parts

TC, VC, NONE = 0, 1, 3


def parts(instant: Sequence[bool], edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Split operators of which some have no duration."""
    skipped = np.array(instant)
    members, first = series_parts(skipped, contracted_ancestors(skipped, np.array(edges)))
    return [part.tolist() for part in np.split(members, first[1:-1])]


def test_instants_pass_precedence_on() -> None:
    """Precedences pass through an operator without duration."""
    instant, edges = np.array([False, True, False]), np.array([[0, 1], [1, 2]])
    assert contracted_ancestors(instant, edges).tolist() == [[0], [0b1], [0b1]]


def test_a_chain_falls_apart() -> None:
    """Every operator of a chain is a part of its own."""
    assert parts([False] * 3, [(0, 1), (1, 2)]) == [[0], [1], [2]]


def test_parts_follow_one_another() -> None:
    """Two diamonds in a row fall apart at the operator between them, instant or not."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5)]
    assert parts([False] * 6, edges) == [[0], [1, 2], [3], [4, 5]]
    instant = [False, False, False, True, False, False]
    assert parts(instant, edges) == [[0], [1, 2], [4, 5]]


def two(rule: str, *rows: tuple[float, ...]) -> Instance:
    """Write two operators without precedence on a chip with two cores of each kind."""
    core, values = np.array([int(row[0]) for row in rows]), np.array([row[1:] for row in rows])
    ancestors = np.zeros((2, 1), dtype=np.int64)
    part, exclusive = np.arange(2), rule == "exclusive"
    arrays, total_s = build_instance(part, core, values, ancestors, (2, 2, exclusive, False))
    return Instance(*arrays, total_s)


def row(core: int, single_s: float, all_s: float, hbm: float = 0.0) -> tuple[float, ...]:
    """Attributes of an operator."""
    return (core, single_s, all_s, hbm, 0.0, 0.0, hbm, 0.0)


def test_a_mode_that_is_never_better_goes() -> None:
    """An operator that gains nothing from all cores keeps one mode."""
    instance = two("exclusive", row(TC, 2.0, 2.0), row(TC, 2.0, 1.0))
    assert instance.allowed.tolist() == [[True, False], [True, True]]


def test_an_operator_that_runs_alone_takes_its_faster_mode() -> None:
    """Operators that together overdraw the HBM run alone, hence in the faster mode."""
    instance = two("per-type", row(TC, 2.0, 1.0, hbm=0.9), row(VC, 2.0, 1.5, hbm=0.2))
    assert instance.allowed.tolist() == [[False, True], [False, True]]


def test_ample_resources_go() -> None:
    """A resource that suffices for all operators at once is dropped."""
    instance = two("exclusive", row(TC, 2.0, 2.0, hbm=0.2), row(NONE, 2.0, 2.0, hbm=0.2))
    assert len(instance.capacity) == 0
