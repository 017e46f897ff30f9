"""More hardware is never slower."""

from __future__ import annotations

from dataclasses import replace

from tests.more_hardware import ROUNDING, TORI, beyond_the_gap, cases, quickly, slowdown


def test_more_of_anything_is_never_slower() -> None:
    """At one placement, nothing gets slower by more than its schedules leave open.

    ``python -m tests.more_hardware`` tries more of them, with more models.
    """
    slower = [(one, slowdown(one)) for one in map(quickly, cases(250, seed=1))]
    assert [(one, found) for one, found in slower if beyond_the_gap(*found)] == []
    assert sum(found[0] < -ROUNDING for _, found in slower) > 50


def test_twice_the_devices_of_a_torus_are_never_slower() -> None:
    """Found or given, a placement may stay on the slice that it had."""
    slower = [(one, slowdown(one)) for one in map(quickly, cases(60, 3, ["devices"], TORI))]
    assert [(one, found) for one, found in slower if beyond_the_gap(*found)] == []
    assert sum(found[0] < -ROUNDING for _, found in slower) > 20


def test_more_overlap_is_never_slower() -> None:
    """Collectives that may run beside products may also be left whole."""
    for one in map(quickly, cases(75, seed=2)):
        data = replace(one.training, overlap="data")
        both = replace(one, larger=one.chip, faster=one.cluster, training=data)
        found = slowdown(both, replace(data, overlap="all"))
        assert not beyond_the_gap(*found), one
