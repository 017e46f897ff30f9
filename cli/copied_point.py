"""One point to take along: as a command, as Python, and as the study that searches around it."""

from __future__ import annotations

import dataclasses
import inspect
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from phaze_opt.evaluation import evaluate
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.fields import chip_values, in_units
from phaze_opt.hardware.presets import find_accelerator
from phaze_opt.network.level_values import NETWORK
from phaze_opt.point import Point
from phaze_opt.report.reproducing import broken_command, study_file
from phaze_opt.spec.axis_names import CHIP_FIELDS
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import AreaSpec, ConstraintSpec, SearchSpec, StudySpec
from phaze_opt.spec.template import sizes_around
from phaze_opt.training import Training
from phaze_opt.workload.zoo import tensor_degrees

from .controls import controls
from .output import read_assignments
from .point_options import PointOptions

_PYTHON_NAMES = {"proof": "prove"}
"""Options that have another name in Python."""

_STUDY = "what-if"

_STATED_OTHERWISE = ("accelerator", "changes", "power_limit_w", "software")
"""Options that a study file states in its space, its limits, or one by one."""


def as_command(options: PointOptions) -> str:
    """Write the command that evaluates a point; what has its default is left out."""
    words = ["phaze-opt evaluate"]
    for control in controls():
        value, default = getattr(options, control.name), _default(control.name)
        if value == default:
            continue
        if control.kind == "switch":
            words.append(control.flag if value else control.off)
        else:
            values = value if isinstance(value, list) else [value]
            words += [f"{control.flag} {shlex.quote(str(each))}" for each in values]
    return broken_command(words)


def as_python(options: PointOptions, point: Point) -> str:
    """Write the lines of Python that evaluate a point."""
    imports = ["import phaze_opt as po"]
    base = find_accelerator(options.accelerator).accelerator
    changed = {_named(name, value) for name, value in _changed(point.accelerator, base).items()}
    keywords = ", ".join(f"{name!r}: {value!r}" for name, value in sorted(changed))
    stated = f", **{{{keywords}}}" if changed else ""
    lines = [f"chip = po.load_accelerator({options.accelerator!r}{stated})"]
    lines.append(f"network = po.load_cluster({options.cluster!r}, {options.devices})")
    if levels := _level_values(options):
        imports.append("from phaze_opt.network.level_values import with_level_values")
        shown = ", ".join(f"{name!r}: {value!r}" for name, value in levels.items())
        lines.append(f'network = with_level_values(network, {{{shown}}}, "network")')
    arguments = [repr(options.model), "chip", "network", "training"]
    arguments += [f"{name}={value!r}" for name, value in _python_options(options, point)]
    return "\n".join(
        [
            *imports,
            "",
            *lines,
            f"training = po.{point.training!r}",
            f"result = po.evaluate({', '.join(arguments)})",
            "print(result)",
            "",
        ]
    )


def as_study(options: PointOptions, point: Point) -> str:
    """Write the study that searches chips around that of a point, for the same training run.

    Degrees are not stated: a study finds the placement of every design.

    Raises
    ------
    InputError
        If the area of the chip is unknown, which is what a study shares out.
    """
    base = find_accelerator(options.accelerator).accelerator
    axes: dict[str, Any] = {}
    for name, value in _changed(point.accelerator, base).items():
        if name in CHIP_FIELDS:
            shown, number = _named(name, value)
            axes[shown] = number
    axes |= dict(sizes_around(point.accelerator, "chip"))
    axes |= _level_values(options)
    area = AreaSpec(max_mm2=point.accelerator.area_under("chip"), model="chip")
    of_study = {field.name for field in dataclasses.fields(StudySpec)}
    training = {
        field.name: getattr(point.training, field.name)
        for field in dataclasses.fields(Training)
        if field.name in of_study
    }
    spec = StudySpec(
        name=_STUDY,
        model=options.model,
        cluster=options.cluster,
        devices=options.devices,
        sequence=options.sequence,
        attention=options.attention,
        **options.trained,
        tensor_parallel=tensor_degrees(options.model, options.trained_parts),
        placement="expert" if options.placement == "expert" else "solve",
        baselines=(options.accelerator,),
        space=Space(options.accelerator, **axes),
        area=area,
        constraints=ConstraintSpec(max_power_w=options.power_limit_w),
        search=SearchSpec(sampler="bound", trials=100),
        **training,
    )
    left_out = ", ".join(_left_out(options, point, of_study))
    note = f"# A study file does not state {left_out}.\n" if left_out else ""
    return note + study_file(spec)


def _left_out(options: PointOptions, point: Point, of_study: Collection[str]) -> Iterator[str]:
    """Yield what is stated of a point, and cannot be stated of a study."""
    for control in controls():
        value = getattr(options, control.name)
        stated = value != _default(control.name)
        is_degrees = control.name == "placement" and value not in ("solve", "expert")
        if stated and (is_degrees or control.name not in (*of_study, *_STATED_OTHERWISE)):
            yield control.flag
    base = find_accelerator(options.accelerator).accelerator
    yield from (name for name in _changed(point.accelerator, base) if name not in CHIP_FIELDS)


def _default(name: str) -> object:
    """Return the default of an option; a value that no option has where there is none."""
    fields = {field.name: field for field in dataclasses.fields(PointOptions)}
    return fields[name].default


def _changed(chip: Accelerator, base: Accelerator) -> dict[str, Any]:
    """Return the numbers in which a chip differs from its base."""
    before, now = chip_values(base), chip_values(chip)
    return {name: value for name, value in now.items() if value != before[name]}


def _named(name: str, value: Any) -> tuple[str, Any]:
    """Return a number by the name of its convenient unit, where it has one."""
    return in_units(name, value) or (name, value)


def _level_values(options: PointOptions) -> Mapping[str, Any]:
    """Return the changed numbers of the network's levels."""
    stated = read_assignments(options.changes)
    return {name: _literal(text) for name, text in stated.items() if name.startswith(NETWORK)}


def _literal(text: str) -> object:
    """Read a number, where it is one."""
    try:
        return float(text)
    except ValueError:
        return text


def _python_options(options: PointOptions, point: Point) -> Iterator[tuple[str, Any]]:
    """Yield the keyword arguments of `evaluate` that an option states."""
    taken = inspect.signature(evaluate).parameters
    for field in dataclasses.fields(PointOptions):
        name = _PYTHON_NAMES.get(field.name, field.name)
        # The objects have their own number of devices, and what software sets is in the point.
        value = getattr(point, name, getattr(options, field.name))
        if name == "economics":
            value = options.economics
        if name == "lora_targets" and value:
            value = options.trained[name]
        stated = value != getattr(field, "default", None) and name != "devices"
        if name in taken and field.default is not dataclasses.MISSING and stated:
            yield name, options.placement if name == "placement" else value
