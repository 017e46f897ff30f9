"""Plain bounds of passes: found once for chips that are the same to a pass, and only for those."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from phaze_opt.choices import Launch
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.launches import host_s
from phaze_opt.training import Training
from phaze_opt.units import GIB, MIB
from phaze_opt.whole_space import scalar_operators, scalar_passes
from phaze_opt.whole_space.scalar_passes import Passes, Sort
from phaze_opt.workload.graph import WorkloadVariant
from phaze_opt.workload.zoo import load_workload

MODEL = "gpt:layers=2,hidden=512,heads=8,sequence=512,vocab=4096,attention=flash"
CHIP = Accelerator(num_tc=4, num_vc=4, pe_x=64, pe_y=64, pe_vc=1024, glb_bytes=8 * MIB)
SORTS: tuple[Sort, ...] = ("box", "fitting", "quick", "chip")


@functools.cache
def variant() -> WorkloadVariant:
    """Return a small model on two devices."""
    (only,) = load_workload(MODEL, tensor_parallel=(2,)).variants
    return only


@functools.cache
def passes(residency: bool) -> Passes:
    """Return its passes."""
    training = Training(
        global_batch=64, recompute="selective", residency=residency, overlap="all", zero=3
    )
    return Passes(variant(), load_cluster("tpuv4-ici-flat", 16), training, "epilogue")


def alone(residency: bool, chip: Accelerator) -> list[object]:
    """Bound a chip as if it were the first one."""
    for cache in (passes, *_caches()):
        cache.cache_clear()
    return [passes(residency).seconds(chip, sort) for sort in SORTS]


def _caches() -> Iterator[Any]:
    for room in (scalar_passes, scalar_operators):
        yield from (
            function for function in vars(room).values() if hasattr(function, "cache_clear")
        )


def _calibrated(**changes: Any) -> Callable[[Accelerator], Accelerator]:
    return lambda chip: replace(chip, calibration=replace(chip.calibration, **changes))


CHANGES: dict[str, Callable[[Accelerator], Accelerator]] = {
    "nothing": lambda chip: chip,
    "tensor cores": lambda chip: replace(chip, num_tc=6),
    "vector cores": lambda chip: replace(chip, num_vc=6),
    "rows": lambda chip: replace(chip, pe_x=128),
    "columns": lambda chip: replace(chip, pe_y=128),
    "edges": lambda chip: replace(chip, pe_x=32, pe_y=128),
    "cores for edges": lambda chip: replace(chip, num_tc=1, pe_x=128, pe_y=128),
    "lanes": lambda chip: replace(chip, pe_vc=2048),
    "cores for lanes": lambda chip: replace(chip, num_vc=2, pe_vc=2048),
    "buffer of a tensor core": lambda chip: replace(chip, l2_tc_bytes=16_000),
    "buffer of a vector core": lambda chip: replace(chip, l2_vc_bytes=1024),
    "their bandwidth": lambda chip: replace(chip, l2_bytes_per_cycle=64.0),
    "global buffer": lambda chip: replace(chip, glb_bytes=MIB // 16),
    "its bandwidth": lambda chip: replace(chip, glb_bytes_per_cycle=256.0),
    "bandwidth of the HBM": lambda chip: replace(chip, hbm_bytes_per_s=300e9),
    "clock": lambda chip: replace(chip, clock_hz=0.5e9),
    "sustained clock": _calibrated(sustained_clock_hz=0.7e9),
    "array efficiency": _calibrated(array_efficiency=0.6),
    "HBM efficiency": _calibrated(hbm_efficiency=0.4),
    "bytes of threads": _calibrated(vector_core_bytes_per_s=2e9),
    "overhead": _calibrated(operator_overhead_s=5e-6),
    "cycles of a tile": _calibrated(tile_overhead_cycles=1000.0),
    "cores of collectives": _calibrated(collective_core_share=0.5),
    "overlap of attention": _calibrated(attention_overlap=0.0),
    "exponentials": _calibrated(exponentials_per_cycle=1.0),
    "one at a time": lambda chip: replace(chip, concurrent_operators=False),
}


@pytest.mark.parametrize("residency", [False, True])
def test_what_was_bounded_before_changes_nothing(residency: bool) -> None:
    """Every chip has the bounds that it has alone, whatever it shares with those before."""
    chips = [change(CHIP) for change in CHANGES.values()]
    together = [[passes(residency).seconds(chip, sort) for sort in SORTS] for chip in chips]
    for chip, expected in zip(chips, together, strict=True):
        assert alone(residency, chip) == expected
    # Every change is seen by some pass: otherwise nothing would be compared.
    others = {
        name: seconds for name, seconds in zip(CHANGES, together, strict=True) if name != "nothing"
    }
    assert [name for name, seconds in others.items() if seconds == together[0]] == []


def test_what_no_pass_sees_is_not_bounded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the HBM, and the part of the global buffer that no product needs."""
    looked = []

    def counted(*arguments: Any) -> Any:
        looked.append(arguments)
        return right(*arguments)

    right = scalar_operators.chip_times
    monkeypatch.setattr(scalar_passes, "chip_times", counted)
    first = replace(CHIP, glb_bytes=512 * MIB, clock_hz=1.01e9)
    seconds = passes(False).seconds(first, "quick")
    number = len(looked)
    assert number > 0
    same = replace(first, glb_bytes=1024 * MIB, hbm_bytes=7 * GIB)
    assert passes(False).seconds(same, "quick") == seconds and len(looked) == number
    assert passes(False).seconds(replace(same, pe_vc=128), "quick") != seconds
    assert len(looked) == 2 * number


@pytest.mark.parametrize("launch", ["compiled", "eager"])
@pytest.mark.parametrize("sort", SORTS)
def test_a_pass_takes_at_least_its_launches(launch: Launch, sort: Sort) -> None:
    """They are counted apart from evaluations, and come to the same; long passes do not change."""
    training = Training(64, recompute="full", launch=launch)
    cluster = load_cluster("tpuv4-ici-flat", 16)
    free = Passes(variant(), cluster, replace(training, launch="graphs"), "elementwise")
    launched = Passes(variant(), cluster, training, "elementwise")
    host = [host_s(layer, training, "elementwise") for layer in variant().layers]
    for clock_hz in (1e8, 1e14):
        chip = replace(CHIP, clock_hz=clock_hz, hbm_bytes_per_s=clock_hz * 1e3)
        pairs = zip(free.seconds(chip, sort), launched.seconds(chip, sort), strict=True)
        for (_, index), (without, with_it) in zip(variant().nodes, pairs, strict=True):
            forward_s, again_s = max(without[0], host[index]["forward"]), without[0]
            assert with_it[0] == forward_s
            backward_s = max(without[1] - again_s, host[index]["backward"])
            assert with_it[1] == pytest.approx(backward_s + forward_s)
