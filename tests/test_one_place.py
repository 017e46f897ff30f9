"""A formula stands in one place: its algebra is not written again where a function has it."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import phaze_opt

ROOT = Path(phaze_opt.__file__).parent

FORMULAS: dict[str, tuple[str, dict[str, int]]] = {
    # The home of a formula: what only it may hold, and how often another formula looks the same.
    "placement.closed_form.pipelined_s": (
        r"\b(of_batch|microbatches|rounds|m)(\[\w+\])? - 1\b",
        {
            "placement/closed_form.py": 1,  # `after_first_s`
            "placement/describe.py": 1,  # seconds of gradient accumulation
            "placement/least_times.py": 1,  # the least work between two stages, both ways
            "placement/split_bounds.py": 1,  # forwards of GPipe
            "batch_energy.py": 1,  # bytes of gradient accumulation
        },
    ),
    "placement.closed_form.held_at": (
        r"min(imum)?\((\w+|\w+ - \w+|\w+ - \w+ \+ 1), (of_batch|microbatches)(\[\w+\])?\)",
        {},
    ),
    "placement.closed_form.even_share": (r"1\.0 - 1\.0 / (self\.)?microbatches", {}),
    "placement.closed_form.busy_s": (r"(microbatches|rounds) \* (load_?s?|\(\w+ \+ \w+\)) - ", {}),
    "placement.memory.share_bytes": (r"ceil\(\w+(\[\w+\])? \* \w*bytes\w* / ", {}),
    "placement.memory.with_stashes": (r"resident\w*(\[[^]]*\])? \+ [^,)]*stash", {}),
    "placement.overlap.charged_s": (r"\w+ \+ \w*(core_)?share \* \(?\w*(hidden|total)", {}),
    "training.Training.schedule_of_chunk": (r"'gpipe' if", {}),
    "training.Training.microbatches": (r"-\(-\S*global_batch", {}),
}
"""By the function that has the formula: a pattern of its code, and where else that may stand."""

REFERENCE = "whole_space/scalar_"
"""Files of the plain reference, in which the formulas of the bounds stand a second time."""


@cache
def code() -> dict[str, str]:
    """Return the code of every file in one notation, without comments and docstrings."""
    found = {}
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(REFERENCE):
            tree = ast.parse(path.read_text("utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    node.value.value = 0
            found[name] = ast.unparse(tree)
    return found


@pytest.mark.parametrize("home", FORMULAS)
def test_a_formula_stands_in_one_place(home: str) -> None:
    """In the function that has it, and nowhere else; what only looks the same is counted."""
    pattern, others = FORMULAS[home]
    parts = home.split(".")
    depth = 2 if parts[1][0].islower() else 1
    file = "/".join(parts[:depth]) + ".py"
    sites = Counter({name: len(re.findall(pattern, text)) for name, text in code().items()})
    assert +sites == Counter({file: 1}) + Counter(others)


@pytest.mark.parametrize("home", [home for home in FORMULAS if home.startswith("placement")])
def test_an_index_names_the_place(home: str) -> None:
    """The docstring of the room leads to it, and it is there."""
    room, module, name = home.split(".")
    assert f"`{module}.{name}`" in (importlib.import_module(f"phaze_opt.{room}").__doc__ or "")
    assert hasattr(importlib.import_module(f"phaze_opt.{room}.{module}"), name)
