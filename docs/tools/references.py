"""The pages that follow from the code, so that nothing is copied by hand.

Every function gives one page in Markdown; `PAGES` says where it stands.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import phaze_opt
from docs.tools.tables import attributes, code, defaults, plain, table
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.chip_file import AcceleratorPreset
from phaze_opt.hardware.fields import ALIASES, CALIBRATION, FIELD_TYPES, chip_values, in_units
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.hardware.presets import accelerator_presets
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.cluster_file import LEVEL_ALIASES
from phaze_opt.network.presets import cluster_presets
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.precision import PRECISIONS, Precision
from phaze_opt.software import SOFTWARE
from phaze_opt.spec.axis_names import ORDER, TRAINING_NAMES, WORDS, kind_of
from phaze_opt.spec.objectives import OBJECTIVES
from phaze_opt.spec.sampler_options import SamplerName, sampler_options
from phaze_opt.spec.schema import spec_schema
from phaze_opt.spec.study_spec import (
    AreaSpec,
    ConstraintSpec,
    SearchSpec,
    StudySpec,
    WorkloadSpec,
)
from phaze_opt.training import Training
from phaze_opt.workload.model_string import parse_model_string
from phaze_opt.workload.zoo import model_config, model_names, tensor_degrees

if TYPE_CHECKING:
    from phaze_opt.user_files import Alias

GENERATED = "This page is generated from the code.\n"


def commands() -> str:
    """Write every command with its arguments and options, as ``--help`` has them."""
    from phaze_opt.cli.main import program

    lines = [
        "# Commands\n",
        GENERATED,
        "`phaze-opt COMMAND --help` says the same. Streams: results go to stdout, all else to "
        "stderr. Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 exists already, 5 infeasible, "
        "130 and 143 interrupted.\n",
    ]
    lines += _command(program(), "phaze-opt")
    return "\n".join(lines)


def _command(command: Any, path: str) -> Iterator[str]:
    """Yield the text of one command, and of those below it."""
    below = getattr(command, "commands", {})
    if path != "phaze-opt":
        yield f"{'###' if path.count(' ') > 1 else '##'} `{path}`\n"
    if command.help:
        yield plain(inspect.cleandoc(command.help)) + "\n"
    rows = [row for option in command.params if (row := _option(option)) is not None]
    if rows and path != "phaze-opt":
        yield table(("option", "value", "meaning", "default"), rows)
    for name, other in below.items():
        yield from _command(other, f"{path} {name}")


_TYPE_NAMES = {
    "str": "text",
    "int": "whole number",
    "int range": "whole number",
    "float": "number",
    "path": "file",
}
"""Types of options in words."""


def _option(option: Any) -> tuple[str, str, str, str] | None:
    """Return the row of one option or argument, ``None`` of those that every command has."""
    if option.name in ("help", "install_completion", "show_completion"):
        return None
    names = option.opts + option.secondary_opts
    positional = option.param_type_name == "argument"
    name = option.make_metavar(None) if positional else ", ".join(map(code, names))
    choices = getattr(option.type, "choices", None)
    is_flag = getattr(option, "is_flag", False)
    kind = "" if is_flag else _TYPE_NAMES.get(option.type.name, option.type.name)
    value = " ".join(map(code, choices)) if choices else kind
    default = option.default
    shown = (
        "" if default in (None, False, True, (), []) or callable(default) else code(str(default))
    )
    return code(name) if positional else name, value, plain(option.help or ""), shown


def study_files() -> str:
    """Write every key of a study file."""
    tables = {
        "`[[workloads]]`": WorkloadSpec,
        "`[area]`": AreaSpec,
        "`[constraints]`": ConstraintSpec,
        "`[search]`": SearchSpec,
    }
    lines = ["# Keys of study files\n", GENERATED]
    lines.append(
        "[Studies](../studies/README.md) says what they mean together; `phaze-opt spec schema` "
        "writes the same as a JSON schema.\n"
    )
    options = [entry.name for entry in dataclasses.fields(Training)]
    own = [name for name in options if name != "global_batch"]
    required = spec_schema()["$defs"][StudySpec.__name__]["required"]
    lines += ["## Top level\n", _fields(StudySpec, required=required, left_out=own)]
    for title, kind in tables.items():
        lines += [f"## {title}\n", _fields(kind)]
    lines += ["## Options of the training run\n", "Keys of the top level, and axes.\n"]
    lines.append(_fields(Training, left_out=["global_batch"]))
    lines += ["### Optimizers\n", "Bytes per local parameter.\n", _optimizers()]
    lines += ["### Precisions\n", table(("precision", *Precision._fields), _precisions())]
    lines += ["### `--software`\n", _software()]
    lines += ["## Axes of `[space]`\n", table(("axis", "of", "values"), _axes())]
    lines += ["## Objectives\n", table(("name", "value of a trial", "better"), _objectives())]
    lines += ["## Samplers\n", table(("sampler", "option", "meaning", "default"), _samplers())]
    return "\n".join(lines)


def _fields(
    kind: type,
    alias_names: Mapping[str, str] | None = None,
    required: Sequence[str] = (),
    left_out: Sequence[str] = (),
) -> str:
    """Write the fields of a dataclass with what its docstring says; those said together, together.

    Parameters
    ----------
    kind
        The dataclass.
    alias_names
        Second names of fields.
    required
        Fields that have no default in a file, whatever they have in Python.
    left_out
        Fields that stand elsewhere.
    """
    said, initial, types = attributes(kind), defaults(kind), get_type_hints(kind)
    rows = []
    for entry in dataclasses.fields(kind):
        if entry.name not in left_out:
            name = code(entry.name)
            if alias_names and entry.name in alias_names:
                name += f" or {code(alias_names[entry.name])}"
            default = "required" if entry.name in required else initial[entry.name]
            rows.append((name, _type(types[entry.name]), said.get(entry.name, ""), default))
    joined = []
    for meaning, group in itertools.groupby(rows, key=lambda row: row[2]):
        names, kinds, _, numbers = zip(*group, strict=True)
        kinds, numbers = (
            column if len(set(column)) > 1 else column[:1] for column in (kinds, numbers)
        )
        joined.append(("<br>".join(names), "<br>".join(kinds), meaning, "<br>".join(numbers)))
    return table(("key", "type", "meaning", "default"), joined)


_TYPE_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}


def _type(kind: Any) -> str:
    """Write the type of a field for a person."""
    if kind in _TYPE_WORDS:
        return _TYPE_WORDS[kind]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(code(str(part)) for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(_type(part) for part in parts if part is not NoneType)
    if origin is tuple:
        return f"list: {_type(parts[0])}"
    return "table"


def _optimizers() -> str:
    """Write what optimizers hold and move."""
    rows = [
        (
            code(name),
            sum(optimizer.held_bytes),
            optimizer.fused_step_bytes,
            optimizer.eager_step_bytes,
            optimizer.step_cycles,
        )
        for name, optimizer in OPTIMIZERS.items()
    ]
    head = ("optimizer", "held", "moved by a fused step", "kernel by kernel", "lane cycles")
    return table(head, rows, "<>>>>")


def _precisions() -> Iterator[tuple[object, ...]]:
    """Yield what tensor cores multiply in each precision."""
    for name, precision in PRECISIONS.items():
        yield code(name), *precision


def _software() -> str:
    """Write the options that each training software stands for."""
    names = [entry.name for entry in dataclasses.fields(next(iter(SOFTWARE.values())))]
    rows = [
        (code(name), *(_number(getattr(kind, field)) for field in names))
        for name, kind in SOFTWARE.items()
    ]
    return table(("software", *names), rows)


def _axes() -> Iterator[tuple[str, str, str]]:
    """Yield every axis that has a name of its own."""
    for name in ORDER:
        kind = kind_of(name)
        values = "words" if name in WORDS else "number, list, range or expression"
        yield code(name), kind, values + (", `solve`" if name in TRAINING_NAMES else "")
    levels = {entry.name for entry in dataclasses.fields(NetworkLevel)} | set(LEVEL_ALIASES)
    for name in sorted(levels):
        yield code(f"network.LEVEL.{name}"), "network", "number, list, range or expression"


def _objectives() -> Iterator[tuple[str, str, str]]:
    """Yield the objectives."""
    for name, kind in OBJECTIVES.items():
        yield code(name), f"`{kind.metric}`, {kind.unit}", "larger" if kind.maximise else "smaller"


def _samplers() -> Iterator[tuple[str, str, str, str]]:
    """Yield the samplers with each of their options."""
    for name in get_args(SamplerName):
        options = type(sampler_options(name, {}))
        fields = dataclasses.fields(options)
        if not fields:
            yield code(name), "", "", ""
        said, initial = attributes(options) if fields else {}, defaults(options)
        for entry in fields:
            yield code(name), code(entry.name), said[entry.name], initial[entry.name]


def chips() -> str:
    """Write the numbers of an accelerator, and every preset with the source of each of its own."""
    lines = ["# Chips\n", GENERATED, "## Numbers of an accelerator\n"]
    lines.append(
        "As chip files, `--set` and spaces name them. Where a second name stands, it is the same "
        "number in that unit; `peak_tflops` states the clock by the peak.\n"
    )
    names = _alias_names(ALIASES)
    own = {name: other for name, other in names.items() if not name.startswith(CALIBRATION)}
    measured = {
        name.removeprefix(CALIBRATION): other.removeprefix(CALIBRATION)
        for name, other in names.items()
        if name.startswith(CALIBRATION)
    }
    lines += [_fields(Accelerator, own), "### `[calibration]`\n", _fields(Calibration, measured)]
    lines += ["## Presets\n", _presets()]
    for preset in accelerator_presets().values():
        lines += [f"### `{preset.name}`\n", f"{preset.description}.\n", _provenance(preset)]
    return "\n".join(lines)


def _alias_names(aliases: Mapping[str, Alias]) -> dict[str, str]:
    """Return the convenient name of each field that has one."""
    return {alias.field: name for name, alias in aliases.items()}


def _presets() -> str:
    """Write one line per preset."""
    rows = []
    for name, preset in accelerator_presets().items():
        chip = preset.accelerator
        area = chip.area_mm2
        rows.append(
            (
                f"[{code(name)}](#{name})",
                f"{chip.num_tc} × {chip.pe_x}×{chip.pe_y}",
                f"{chip.num_vc} × {chip.pe_vc}",
                f"{chip.peak_flops_per_s / 1e12:,.1f}",
                f"{chip.glb_bytes / 2**20:g}",
                f"{chip.hbm_bytes / 2**30:g}",
                f"{chip.hbm_bytes_per_s / 1e9:,g}",
                "none" if area is None else f"{area:,.1f}",
            )
        )
    head = ("preset", "tensor cores", "vector cores", "TFLOP/s", "GLB MiB", "HBM GiB", "HBM GB/s")
    return table((*head, "area mm²"), rows, "<<<>>>>>")


def _provenance(preset: AcceleratorPreset) -> str:
    """Write every number of a preset that has a source."""
    values = chip_values(preset.accelerator)
    rows = []
    for name in FIELD_TYPES:
        if name in preset.provenance:
            shown, value = in_units(name, values[name]) or (name, values[name])
            source = preset.provenance[name]
            rows.append((code(shown), _number(value), source.confidence, source.source))
    return table(("number", "value", "confidence", "source"), rows, "<><<")


def _number(value: object) -> str:
    """Write a number of a chip or a network."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    return f"{value:,g}" if isinstance(value, int | float) else str(value)


def networks() -> str:
    """Write the numbers of a network's level, and every preset."""
    lines = ["# Networks\n", GENERATED, "## Numbers of a level\n"]
    lines.append("As cluster files, `--set network.LEVEL.NAME=…` and spaces name them.\n")
    lines += [_fields(NetworkLevel, _alias_names(LEVEL_ALIASES)), "## Presets\n"]
    for name, cluster in cluster_presets().items():
        lines += [f"### `{name}`\n", cluster.source + "\n", _levels(cluster)]
    return "\n".join(lines)


def _levels(cluster: Cluster) -> str:
    """Write the levels of a network, the innermost first."""
    rows = []
    for index, level in enumerate(cluster.levels):
        rows.append(
            (
                index,
                level.topology,
                "any number" if level.group_size is None else f"{level.group_size:,}",
                "×".join(map(str, level.axes)),
                f"{level.bandwidth_bytes_per_s / 1e9:g}",
                f"{level.efficiency:g}",
                f"{level.latency_s * 1e6:g}",
            )
        )
    head = ("level", "topology", "joins", "axes", "GB/s", "efficiency", "latency, µs")
    return table(head, rows, "><><>>>")


def models() -> str:
    """Write the models of the zoo, and what a shape may state."""
    rows = []
    for name in model_names():
        shape = model_config(name)
        rows.append((code(name), *(_number(getattr(shape, key)) for key in _SHAPE), _degrees(name)))
    lines = ["# Models\n", GENERATED, table(("model", *_SHAPE, "tensor degrees"), rows)]
    (said,) = re.findall(
        r"model\n {4}(.+?)\n\n", inspect.getdoc(parse_model_string) or "", re.DOTALL
    )
    lines += ["## Shapes\n", " ".join(said.split()) + "\n"]
    return "\n".join(lines)


_SHAPE = ("layers", "hidden", "heads", "sequence", "vocabulary")


def _degrees(name: str) -> str:
    """Write the tensor-parallel degrees of a model."""
    return ", ".join(map(str, tensor_degrees(name)))


def python() -> str:
    """Write directives for the public names; mkdocstrings puts their docstrings there."""
    lines = ["# Python\n", GENERATED, "`import phaze_opt as po` has these names.\n"]
    for name in phaze_opt.__all__:
        found = getattr(phaze_opt, name)
        lines.append(f"::: {found.__module__}.{name}\n")
    return "\n".join(lines)


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": commands,
    "reference/study-files.md": study_files,
    "reference/chips.md": chips,
    "reference/networks.md": networks,
    "reference/models.md": models,
    "reference/python.md": python,
}
"""By path in the site."""
