from dataclasses import replace
from pathlib import Path

import pytest

from phaze_opt.errors import InputError
from phaze_opt.hardware.chip_file import chip_file_text
from phaze_opt.hardware.presets import accelerator_presets, find_accelerator


@pytest.mark.parametrize("name", accelerator_presets())
def test_a_chip_is_read_back_with_its_sources(tmp_path: Path, name: str) -> None:
    """Every number to the last bit, and where it comes from."""
    path = tmp_path / "chip.toml"
    preset = accelerator_presets()[name]
    path.write_text(chip_file_text(preset), encoding="utf-8")
    assert find_accelerator(str(path)) == replace(preset, name=str(path))


def test_text_that_a_terminal_obeys_is_not_written(tmp_path: Path) -> None:
    """Quotes, backslashes and control characters of a description do not break the file."""
    path = tmp_path / "chip.toml"
    preset = replace(accelerator_presets()["tpuv4"], description='a "quoted\\" \x1b[31m\x7f line\n')
    path.write_text(chip_file_text(preset), encoding="utf-8")
    assert find_accelerator(str(path)).description == 'a "quoted\\" ?[31m? line?'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('[provenance]\nnum_tcs = { source = "a", confidence = "low" }', "Did you mean 'num_tc'"),
        ('[provenance]\nnum_tc = { source = "a", confidence = "sure" }', "confidence"),
        ("[provenance]\nnum_tc = 3", "not valid"),  # no table
        ("provenance = 3", "not valid"),  # no table of tables
        ("description = 3", "not valid"),  # no text
    ],
)
def test_impossible_sources_are_refused(tmp_path: Path, line: str, message: str) -> None:
    """With the place in the file."""
    path = tmp_path / "chip.toml"
    chip = "num_tc = 4\nnum_vc = 4\npe_x = 64\npe_y = 64\npe_vc = 64\nglb_bytes = 33554432\n"
    path.write_text(f"{chip}{line}\n")
    with pytest.raises(InputError, match=message):
        find_accelerator(str(path))
