"""``phaze-opt import-config``."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path

import pytest

from phaze_opt.interchange.framework_config import import_config
from phaze_opt.report.imported import row_text
from phaze_opt.validation.own_runs import validate_own_runs
from tests.cli.conftest import Phaze

SAMPLES = Path(__file__).parent.parent / "data" / "framework_configs"
NAMES = sorted(path.name for path in SAMPLES.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_the_command_and_the_row_are_the_same_run(name: str, phaze: Phaze, tmp_path: Path) -> None:
    """Whoever evaluates the command and whoever validates the row find one time."""
    found = import_config(SAMPLES / name, accelerator="h100", cluster="dgx-h100", devices=None)
    if "devices" in found.missing:
        found = import_config(SAMPLES / name, accelerator="h100", cluster="dgx-h100", devices=128)
    assert found.missing == ()
    _, *arguments = shlex.split(found.command)
    evaluated = phaze(*arguments, "--json").json
    lines = list(csv.reader(row_text(found).splitlines()))
    with (tmp_path / "row.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*lines[0], "measured_s"], [*lines[1], "1"]])
    (table,) = validate_own_runs(tmp_path / "row.csv")
    assert table.rows[0].predicted == evaluated["time_per_batch_s"]


def test_what_was_found_is_shown(phaze: Phaze) -> None:
    """The command and the row as they are, then what is missing and unknown."""
    path = str(SAMPLES / "megatron_gpt3.sh")
    shown, plain = phaze("import-config", path), phaze("import-config", path, "--json").json
    assert plain["command"] in shown.out.splitlines()
    assert "a-new-option" in shown.out and plain["unknown"] == ["a-new-option"]
    assert plain["missing"] == ["accelerator", "cluster"]
    assert phaze("import-config", "no.sh").code == 3
    assert phaze("import-config", __file__).code == 2
