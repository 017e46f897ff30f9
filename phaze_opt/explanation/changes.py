"""Points with a tenth more of one resource, each with the settings that make it.

A change is made by the settings that it names, through the code that reads ``--set``: evaluating
with them gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from phaze_opt.choices import Launch, Overlap
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.fields import ALIASES, CALIBRATION, chip_values, in_si, with_values
from phaze_opt.network.cluster_file import LEVEL_ALIASES
from phaze_opt.network.level_values import NETWORK, with_level_values
from phaze_opt.point import Point
from phaze_opt.user_files import Alias
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import LoadWorkload

MORE = 1.1
"""How much of a resource is tried; of what should be small (overhead, latency) a tenth less."""
LESS = 0.9

_DIGITS = 12
"""Of a number that a setting states: without the noise of the last bits, that a person types it."""

_CHIP_UNITS = {alias.field: (name, alias) for name, alias in ALIASES.items()}
_LEVEL_UNITS = {alias.field: (name, alias) for name, alias in LEVEL_ALIASES.items()}
_LATENCIES = ("latency_s", "launch_s", "in_switch_latency_s")
_WHAT = "explanation"


@dataclass(frozen=True, eq=False)
class Change:
    """A point with more of one resource.

    Attributes
    ----------
    resource, factor
        As in `phaze_opt.explanation.gains.Gain`.
    point
        The changed point.
    options
        The options of ``phaze-opt evaluate`` that make it; none where no chip has it.
    """

    resource: str
    factor: float
    point: Point
    options: tuple[str, ...]


def changes(point: Point) -> Iterator[Change]:
    """Yield the point with a tenth more of every resource."""
    chip = point.accelerator
    settings, faster = _with_chip_field(chip, "clock_hz", MORE)
    # The arrays' rate is the clock with all that shares it held: lanes, and bytes per second of
    # the global buffer. The L2 belongs to its array.
    rate = faster.clock_hz / chip.clock_hz
    arrays = replace(faster, glb_bytes_per_cycle=chip.glb_bytes_per_cycle / rate)
    compute = replace(point, accelerator=arrays, lane_rate=point.lane_rate / rate)
    yield Change("compute", MORE, compute, ())
    yield Change("lanes", MORE, replace(point, lane_rate=point.lane_rate * MORE), ())
    yield Change("clock", MORE, replace(point, accelerator=faster), settings)
    of_hbm = [("hbm", "hbm_bytes_per_s", MORE), ("hbm_size", "hbm_bytes", MORE)]
    for resource, field, factor in (
        ("glb", "glb_bytes_per_cycle", MORE),
        *(of_hbm if chip.has_hbm else [("glb_size", "glb_bytes", MORE)]),
        ("overhead", f"{CALIBRATION}operator_overhead_s", LESS),
    ):
        if chip_values(chip)[field] > 0.0:
            settings, other = _with_chip_field(chip, field, factor)
            yield Change(resource, factor, replace(point, accelerator=other), settings)
    yield from _network_changes(point)


def more_overlap(point: Point) -> Iterator[Change]:
    """Yield the point with more communication beside compute."""
    further: dict[Overlap, tuple[Overlap, ...]] = {
        "none": ("data", "experts", "all"),
        "partial": ("data", "experts", "all"),
        "data": ("experts", "all"),
        "experts": ("all",),
        "all": (),
    }
    for overlap in further[point.training.overlap]:
        if overlap == "experts" and point.training.expert_parallel == 1:
            continue  # the same as data
        try:
            training = replace(point.training, overlap=overlap)
        except InputError:  # the schedule may not have it
            continue
        changed = replace(point, training=training)
        yield Change(f"overlap_{overlap}", 1.0, changed, (f"--overlap {overlap}",))


def fewer_rows(point: Point, load: LoadWorkload) -> Iterator[Change]:
    """Yield the point without the rows of experts that even routing does not have.

    Parameters
    ----------
    point
        The point.
    load
        Loads its model under other options.
    """
    training = point.training
    if training.expert_imbalance > 1.0 and training.expert_parallel > 1:
        even = replace(point, training=replace(training, expert_imbalance=1.0))
        yield Change("even_rows", 1.0, even, ("--expert-imbalance 1",))
    if training.expert_capacity > 1.0:
        dropless = replace(point, training=replace(training, expert_capacity=0.0))
        try:
            dropless = replace(dropless, workload=workload_of(dropless, load))
        except InputError:  # a file may hold other captures only
            return
        yield Change("dropless_rows", 1.0, dropless, ("--expert-capacity 0",))


def workload_of(point: Point, load: LoadWorkload) -> Workload:
    """Return the model as a point needs it.

    Raises
    ------
    InputError
        If it cannot be captured so.
    """
    tensor = point.placement[2] if isinstance(point.placement, tuple) else None
    return load(point.training, tensor)


def fewer_launches(point: Point) -> Iterator[Change]:
    """Yield the point with fewer kernels that the host launches one by one."""
    further: dict[Launch, tuple[Launch, ...]] = {
        "eager": ("compiled", "graphs"),
        "compiled": ("graphs",),
        "graphs": (),
    }
    for launch in further[point.training.launch]:
        changed = replace(point, training=replace(point.training, launch=launch))
        yield Change(f"launch_{launch}", 1.0, changed, (f"--launch {launch}",))


def _with_chip_field(
    chip: Accelerator, field: str, factor: float
) -> tuple[tuple[str, ...], Accelerator]:
    """Return the setting that multiplies a number of a chip, and the chip with it."""
    stated = _setting(field, chip_values(chip)[field] * factor, _CHIP_UNITS)
    return _options(stated), with_values(chip, in_si(stated, _WHAT, {}), _WHAT)


def _network_changes(point: Point) -> Iterator[Change]:
    """Yield every level with more bandwidth or less taper, and all with less latency."""
    levels = point.cluster.levels
    latencies: dict[str, float] = {}
    for index, level in enumerate(levels):
        more = level.bandwidth_bytes_per_s * MORE
        wider = _setting("bandwidth_bytes_per_s", more, _LEVEL_UNITS, f"{NETWORK}{index}.")
        yield _with_levels(point, f"link_{index}", MORE, wider)
        if level.taper > 1.0:
            less_taper = {f"{NETWORK}{index}.taper": max(1.0, round(level.taper * LESS, _DIGITS))}
            yield _with_levels(point, f"taper_{index}", LESS, less_taper)
        for field in _LATENCIES:
            less = getattr(level, field) * LESS
            if less > 0.0:
                latencies |= _setting(field, less, _LEVEL_UNITS, f"{NETWORK}{index}.")
    if latencies:
        yield _with_levels(point, "network_latency", LESS, latencies)


def _with_levels(point: Point, resource: str, factor: float, stated: Mapping[str, float]) -> Change:
    """Return a change of the network."""
    cluster = with_level_values(point.cluster, stated, _WHAT)
    return Change(resource, factor, replace(point, cluster=cluster), _options(stated))


def _setting(
    field: str, value: float, units: Mapping[str, tuple[str, Alias]], before: str = ""
) -> dict[str, float]:
    """Name a number in its convenient unit, rounded to what a person types."""
    name, alias = units.get(field, (field, None))
    shown = value / float(alias.factor) if alias else value
    return {before + name: float(f"{shown:.{_DIGITS}g}")}


def _options(stated: Mapping[str, float]) -> tuple[str, ...]:
    """Write settings as options."""
    return tuple(f"--set {name}={value:.{_DIGITS}g}" for name, value in stated.items())
