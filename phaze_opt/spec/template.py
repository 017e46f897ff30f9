"""A study file to start from: a base chip, half and twice each of its sizes, and a model."""

from __future__ import annotations

from collections.abc import Iterator

from phaze_opt.choices import AreaModel
from phaze_opt.codec import toml_value
from phaze_opt.errors import InputError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.fields import field_of, in_units
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.workload.zoo import tensor_degrees

_SIZES = {
    "num_tc": "tensor cores",
    "pe_x": "width of a tensor core's array",
    "pe_y": "its height",
    "num_vc": "vector cores",
    "pe_vc": "lanes of each",
    "glb_bytes": "global buffer",
    "hbm_bytes_per_s": "HBM bandwidth",
}
_COMMENT_COLUMN = 44


def spec_text(
    name: str,
    *,
    base: str,
    model: str,
    cluster: str,
    devices: int,
    global_batch: int,
    area_model: AreaModel = "chip",
) -> str:
    """Write a commented study file around a base.

    Raises
    ------
    InputError
        If the base or the model is unknown, or the base has no area.
    """
    chip = load_accelerator(base)
    if chip.area_if_known(area_model) is None:
        raise InputError(
            f"The base {base!r} has no area, since a buffer of it lies outside the table of SRAM "
            "macros; a study needs one, the limit of its space."
        )
    lines = [
        f"# Which chip around {base} trains {model} fastest?",
        "#",
        f"#   phaze-opt spec check FILE; phaze-opt study create FILE; phaze-opt study run {name}",
        "",
        f"name = {toml_value(name)}",
        f"model = {toml_value(model)}",
        _line(
            f"tensor_parallel = {list(tensor_degrees(model))}",
            "degrees that the placement may choose",
        ),
        f"cluster = {toml_value(cluster)}",
        f"devices = {devices}",
        f"global_batch = {global_batch}",
        'optimizer = "adam"',
        f"baselines = [{toml_value(base)}]",
        "",
        "# What is not named here has the number of the base. A list is searched as it stands,",
        "# { min, max } all powers of two, { min, max, step } all steps, a single value is fixed.",
        "[space]",
        f"base = {toml_value(base)}",
    ]
    return "\n".join(
        [
            *lines,
            *(
                _line(f"{name} = {values}", _SIZES[field_of(name)])
                for name, values in sizes_around(chip, area_model)
            ),
            _line("microbatch = { min = 1, max = 8 }", "samples per pipeline step"),
            _line('recompute = ["none", "full"]', "what runs again before the backward"),
            _line("zero = { solve = [0, 1] }", "ZeRO stage, the best in every evaluation"),
            "",
            "[area]",
            f"model = {toml_value(area_model)}",
            f"max_of = {toml_value(base)}",
            "",
            "[search]",
            _line('sampler = "bound"', "best bounds first; ends when the best is proven"),
            "trials = 100",
            "seed = 0",
            "",
        ]
    )


def sizes_around(chip: Accelerator, area_model: AreaModel) -> Iterator[tuple[str, list[float]]]:
    """Yield the name of each size of a chip that an area model charges for, and values around it.

    The values are half of it (of whole numbers an even one only), itself and twice as much.
    """
    for field in _SIZES:
        if field == "hbm_bytes_per_s" and (area_model == "phaze-22nm" or not chip.has_hbm):
            continue
        shown, value = in_units(field, getattr(chip, field)) or (field, getattr(chip, field))
        around = [value / 2, value, 2 * value]
        if float(value).is_integer():
            around = [int(value), 2 * int(value)]
            # An odd number of cores has no half.
            around[:0] = [int(value) // 2] if value % 2 == 0 else []
        yield shown, around


def _line(statement: str, meaning: str) -> str:
    """Write a statement with its meaning as a comment."""
    return f"{statement:<{_COMMENT_COLUMN}}# {meaning}"
