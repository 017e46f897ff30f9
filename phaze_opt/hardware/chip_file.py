"""An accelerator as a TOML file that `phaze_opt.hardware.presets.find_accelerator` reads back."""

from __future__ import annotations

from phaze_opt.codec import toml_lines, toml_value
from phaze_opt.hardware.presets import AcceleratorPreset


def chip_file_text(preset: AcceleratorPreset) -> str:
    """Write every number of a chip, and the sources of those that have one.

    Parameters
    ----------
    preset
        Its name is not written: the path of the file takes its place.
    """
    lines = [f"description = {toml_value(preset.description)}"] if preset.description else []
    lines += toml_lines(preset.accelerator)
    lines += ["", "[calibration]", *toml_lines(preset.accelerator.calibration)]
    if preset.provenance:
        lines += ["", "[provenance]"]
    for name, origin in preset.provenance.items():
        source, confidence = toml_value(origin.source), toml_value(origin.confidence)
        lines.append(f"{toml_value(name)} = {{ source = {source}, confidence = {confidence} }}")
    return "\n".join(lines) + "\n"
