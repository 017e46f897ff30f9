"""Configurations of training frameworks, told apart by their name and content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import yaml

from phaze_opt.codec import read_file, read_toml_file
from phaze_opt.errors import InputError
from phaze_opt.interchange.imported import ImportedConfig
from phaze_opt.interchange.maxtext_config import read_maxtext_config
from phaze_opt.interchange.megatron_arguments import read_megatron_arguments
from phaze_opt.interchange.torchtitan_config import read_torchtitan_config

_WHAT = "framework configuration"


def import_config(
    path: Path,
    *,
    model: str | None = None,
    accelerator: str | None = None,
    cluster: str | None = None,
    devices: int | None = None,
) -> ImportedConfig:
    """Read the configuration of a training framework as a run.

    Parameters
    ----------
    path
        A TOML of torchtitan, a YAML of MaxText, or anything else with arguments of Megatron-LM.
    model
        Instead of the one that it states.
    accelerator, cluster, devices
        Which it does not state.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If it is Python, which is never executed, or none of these, or a value is not allowed.
    """
    read = _reader(path)
    try:
        found = read(model)
    except InputError as error:
        raise InputError(f"The {_WHAT} {path} is not valid: {error}") from None
    stated = {"accelerator": accelerator, "cluster": cluster, "devices": devices}
    given = {name: str(value) for name, value in stated.items() if value is not None}
    return replace(found, row={**found.row, **given})


def _reader(path: Path) -> Callable[[str | None], ImportedConfig]:
    """Read a file by its ending; return what makes a run of it, given the model or none."""
    if path.suffix == ".py":
        raise InputError(
            f"The {_WHAT} {path} is Python, which is never executed; import the arguments, TOML or "
            "YAML that it leads to."
        )
    if path.suffix == ".toml":
        return partial(read_torchtitan_config, read_toml_file(path, _WHAT))
    if path.suffix in (".yml", ".yaml"):
        return partial(read_maxtext_config, _read_yaml(path))
    text = read_file(path, _WHAT).decode("utf-8", errors="replace")
    return partial(read_megatron_arguments, text)


def _read_yaml(path: Path) -> Mapping[str, object]:
    """Read a YAML whose keys are words; tags that would make objects are refused."""
    try:
        document = yaml.safe_load(read_file(path, _WHAT))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"The {_WHAT} {path} is no YAML: {reason}.") from None
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise InputError(f"The {_WHAT} {path} is no YAML of options by name.")
    return document
