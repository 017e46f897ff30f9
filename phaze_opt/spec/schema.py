"""JSON schema of a study file, with which editors complete and check the file."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from phaze_opt.network.level_values import LEVEL_NAMES
from phaze_opt.spec.axis_names import ORDER, TRAINING_NAMES, WORDS
from phaze_opt.spec.space import PHAZE, Space
from phaze_opt.spec.study_spec import StudySpec

_SCALAR = {"type": ["number", "string", "boolean"]}
_CHOICES = {"type": "array", "minItems": 1, "items": _SCALAR}
_RANGE = {
    "type": "object",
    "properties": {name: {"type": "number"} for name in ("min", "max", "step")},
    "required": ["min", "max"],
    "additionalProperties": False,
    "description": "Powers of two from min to max; with step all numbers min, min + step, …",
}
_SOLVED = {
    "type": "object",
    "properties": {"solve": _CHOICES},
    "required": ["solve"],
    "additionalProperties": False,
    "description": "Every evaluation tries these, and keeps the best.",
}


def spec_schema() -> dict[str, Any]:
    """Return the JSON schema of a study file (also of TOML files)."""
    (schema,), definitions = msgspec.json.schema_components(
        [StudySpec], schema_hook=_own_schema, ref_template="#/$defs/{name}"
    )
    study = definitions[StudySpec.__name__]
    study["required"] = ["name", "cluster", "devices", "global_batch"]
    for definition in definitions.values():
        # The description of a dataclass is its docstring, indented as in the code.
        if "description" in definition:
            definition["description"] = inspect.cleandoc(definition["description"])
        if definition.get("type") == "object":
            definition["additionalProperties"] = False
        for field in definition.get("properties", {}).values():
            field.pop("default", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "phaze-opt study",
        **schema,
        "$defs": definitions,
    }


def _own_schema(kind: type) -> dict[str, Any]:
    """Return the schema of the space, which msgspec does not know."""
    if kind is not Space:
        raise NotImplementedError(kind)
    axes = {name: _axis_schema(name) for name in ORDER}
    of_level = {name: _axis_schema(f"network.0.{name}") for name in LEVEL_NAMES}
    level = {"type": "object", "properties": of_level, "additionalProperties": False}
    table = {
        "type": "object",
        "properties": {
            "base": {
                "type": "string",
                "description": "Preset or file that gives every number that is not named.",
            },
            "preset": {"const": PHAZE, "description": "All axes of the paper's space."},
            **axes,
            "network": {
                "type": "object",
                "patternProperties": {"^[0-9]{1,2}$": level},
                "additionalProperties": False,
                "description": "By level, the innermost 0: numbers of the network's levels.",
            },
        },
        "patternProperties": {
            rf"^network\.[0-9]{{1,2}}\.{name}$": schema for name, schema in of_level.items()
        },
        "additionalProperties": False,
    }
    return {"anyOf": [{"const": PHAZE}, table]}


def _axis_schema(name: str) -> dict[str, Any]:
    """Return the schema of one axis."""
    ways: list[dict[str, Any]] = [_SCALAR, _CHOICES]
    if name not in WORDS:
        ways.append(_RANGE)
    if name in TRAINING_NAMES:
        ways.append(_SOLVED)
    return {"anyOf": ways}
