"""The generated references name all that there is, and say something of it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
from phaze_opt.cli.main import program

from docs.tools import references
from docs.tools.tables import attributes, plain, table
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.hardware.presets import accelerator_presets
from phaze_opt.network.cluster import NetworkLevel
from phaze_opt.network.presets import cluster_presets
from phaze_opt.spec.axis_names import ORDER
from phaze_opt.spec.objectives import OBJECTIVES
from phaze_opt.spec.study_spec import (
    AreaSpec,
    ConstraintSpec,
    SearchSpec,
    StudySpec,
    WorkloadSpec,
)
from phaze_opt.training import Training
from phaze_opt.workload.zoo import model_names


def leaves(command: Any, path: str = "phaze-opt") -> Iterator[tuple[str, Any]]:
    """Yield every command that is no group, by its name."""
    below = getattr(command, "commands", {})
    if not below:
        yield path, command
    for name, other in below.items():
        yield from leaves(other, f"{path} {name}")


def test_every_command_and_option_is_there() -> None:
    """With every name of every option, in the section of its command."""
    sections = re.split(r"^##+ `(phaze-opt [^`]+)`\n", references.commands(), flags=re.MULTILINE)
    by_command = dict(zip(sections[1::2], sections[2::2], strict=True))
    found = dict(leaves(program()))
    assert len(found) > 30
    for path, command in found.items():
        for option in command.params:
            if option.name != "help" and option.param_type_name == "option":
                for name in option.opts + option.secondary_opts:
                    assert f"`{name}`" in by_command[path], f"{path} {name}"


@pytest.mark.parametrize(
    "kind",
    [
        *(StudySpec, WorkloadSpec, AreaSpec, ConstraintSpec, SearchSpec, Training),
        *(Accelerator, Calibration, NetworkLevel),
    ],
)
def test_every_field_is_described(kind: type) -> None:
    """In the docstring of its class, from which the tables are made."""
    said = attributes(kind)
    for field in dataclasses.fields(kind):
        assert said.get(field.name), f"{kind.__name__}.{field.name}"


def test_study_files_have_all_keys() -> None:
    """Keys, axes, objectives; required keys are said to be."""
    page = references.study_files()
    names = [field.name for kind in (StudySpec, Training) for field in dataclasses.fields(kind)]
    for name in (*names, *ORDER, *OBJECTIVES):
        assert f"`{name}`" in page, name
    assert re.search(r"`cluster`<br>`devices` \|.*\| required \|", page)


def test_presets_are_all_there() -> None:
    """Chips with the source of every number, networks with their levels, models."""
    chips = references.chips()
    for name, preset in accelerator_presets().items():
        section = chips.split(f"### `{name}`\n")[1].split("### ")[0]
        for source in preset.provenance.values():
            assert " ".join(source.source.split()).replace("|", "\\|") in section
    networks, models = references.networks(), references.models()
    for name in cluster_presets():
        assert f"### `{name}`" in networks
    for name in model_names():
        assert f"| `{name}` |" in models


def test_tables_keep_their_columns() -> None:
    """Bars and lines in a cell are no bars and lines of the table."""
    assert table(("a", "b"), [("x|y", "1\n2")], "<>") == (
        "| a | b |\n| --- | ---: |\n| x\\|y | 1 2 |\n"
    )
    assert plain("a[b] <c>") == "a\\[b] \\<c>"
