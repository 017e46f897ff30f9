from phaze_opt.scheduling.instance import INTRA, SINGLE
from phaze_opt.scheduling.reduction import (
    build_instance,
    contracted_ancestors,
    series_parts,
    set_bits,
)

TC, VC, NONE = 0, 1, 3


def test_bits_are_the_positions() -> None:
    """The positions of a mask's bits add up to the mask again."""
    mask = 0b1011 << 130
    assert set_bits(mask) == [130, 131, 133]


def test_instants_pass_precedence_on() -> None:
    """Precedences pass through an operator without duration."""
    assert contracted_ancestors([False, True, False], [(0, 1), (1, 2)]) == [0, 0b1, 0b1]


def test_a_chain_falls_apart() -> None:
    """Every operator of a chain is a part of its own."""
    ancestors = contracted_ancestors([False] * 3, [(0, 1), (1, 2)])
    assert series_parts([0, 1, 2], ancestors) == [[0], [1], [2]]


def test_parts_follow_one_another() -> None:
    """Two diamonds in a row fall apart at the operator between them, instant or not."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5)]
    assert series_parts(range(6), contracted_ancestors([False] * 6, edges)) == [
        [0],
        [1, 2],
        [3],
        [4, 5],
    ]
    instant = [False, False, False, True, False, False]
    kept = [0, 1, 2, 4, 5]
    assert series_parts(kept, contracted_ancestors(instant, edges)) == [[0], [1, 2], [4, 5]]


def row(core: int, single_s: float, all_s: float, hbm: float = 0.0) -> tuple[float, ...]:
    """Attributes of an operator."""
    return (core, single_s, all_s, hbm, 0.0, 0.0, hbm, 0.0)


def test_a_mode_that_is_never_better_goes() -> None:
    """An operator that gains nothing from all cores keeps one mode."""
    attributes = [row(TC, 2.0, 2.0), row(TC, 2.0, 1.0)]
    instance = build_instance([0, 1], attributes, [0, 0], (2, 2), "exclusive")
    assert instance.modes == ((SINGLE,), (SINGLE, INTRA))


def test_an_operator_that_runs_alone_takes_its_faster_mode() -> None:
    """Operators that together overdraw the HBM run alone, hence in the faster mode."""
    attributes = [row(TC, 2.0, 1.0, hbm=0.9), row(VC, 2.0, 1.5, hbm=0.2)]
    instance = build_instance([0, 1], attributes, [0, 0], (2, 2), "per-type")
    assert instance.modes == ((INTRA,), (INTRA,))


def test_ample_resources_go() -> None:
    """A resource that suffices for all operators at once is dropped."""
    attributes = [row(TC, 2.0, 2.0, hbm=0.2), row(NONE, 2.0, 2.0, hbm=0.2)]
    instance = build_instance([0, 1], attributes, [0, 0], (2, 2), "exclusive")
    assert instance.capacity == ()
