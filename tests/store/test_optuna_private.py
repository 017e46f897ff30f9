"""Private names of Optuna: used in one file, and read for one version."""

import ast
import re
from pathlib import Path

import phaze_opt
from phaze_opt.store import optuna_private

READ_FOR = "5.0.0"
"""The version of Optuna whose private names, attributes and tables the store was written for."""

CHECKOUT = Path(phaze_opt.__file__).parents[1]
HOME = Path(optuna_private.__file__)
PRIVATE = re.compile(r"optuna(\.\w+)*\._\w+")


def test_private_names_are_read_for_the_locked_version() -> None:
    """Another version of Optuna is locked only after somebody has read its private names again."""
    lock = (CHECKOUT / "requirements.lock").read_text("utf-8")
    locked = re.findall(r"^optuna==(\S+)", lock, re.MULTILINE)
    assert locked == [READ_FOR], (
        f"requirements.lock names Optuna {locked}, but phaze_opt/store/optuna_private.py was read "
        f"for {READ_FOR}: compare every name in its docstring with the new version, then change "
        "READ_FOR here."
    )


def private_names(source: str) -> list[str]:
    """Return the private modules and names of Optuna that a file imports, or names in a string."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.append(node.value)
    return [name for name in names if PRIVATE.match(name)]


def test_only_one_file_imports_private_modules_of_optuna() -> None:
    """Whether a module or a name of it is private, and however it is imported."""
    for line in (
        "import optuna._hypervolume",
        "import optuna.storages._rdb.models as models",
        "from optuna._hypervolume import compute_hypervolume",
        "from optuna.storages import _CachedStorage",
        "importlib.import_module('optuna.samplers._ga')",
    ):
        assert private_names(line) != [], line
    assert private_names("from optuna.samplers import BaseGASampler") == []
    files = [path for room in ("phaze_opt", "cli") for path in (CHECKOUT / room).rglob("*.py")]
    assert len(files) > 100 and HOME in files
    users = {
        path.relative_to(CHECKOUT).as_posix(): names
        for path in files
        if path != HOME and (names := private_names(path.read_text("utf-8")))
    }
    assert users == {}
