"""Software by name: what it sets is what a person would have set."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import pytest

from phaze_opt.choices import SoftwareName
from phaze_opt.precision import RECIPES
from phaze_opt.software import SOFTWARE
from phaze_opt.training import Training
from tests.cli.conftest import Phaze

RUN = (
    "evaluate", "--json", "--model", "gpt:layers=2,hidden=256,heads=4,sequence=128,vocab=512",
    "--accelerator", "a100-80", "--cluster", "dgx-a100", "--devices", "8", "--global-batch", "16",
    "--microbatch", "1", "--zero", "3",
)  # fmt: skip


PRECISIONS_OF = ("fp8_primary_weights_of", "fp8_param_gather_of")
"""In which precisions weights are held and gathered in fp8: options in those only."""


def options_of(name: SoftwareName) -> list[str]:
    """Return the options that set the same one by one."""
    stated: list[str] = []
    for field in fields(SOFTWARE[name]):
        value: Any = getattr(SOFTWARE[name], field.name)
        option = f"--{field.name.replace('_', '-')}"
        if field.name in ("gather_copies", "fused_accumulation"):
            stated += [option if value else option.replace("--", "--no-", 1)]
        elif field.name not in ("attention_kernel", *PRECISIONS_OF) and value is not None:
            stated += [option, value]
    return stated


@pytest.mark.parametrize("name", get_args(SoftwareName))
def test_a_name_stands_for_its_options(phaze: Phaze, name: SoftwareName) -> None:
    """The answer is the same to the last bit, where attention is not fused."""
    by_name = phaze(*RUN, "--software", name).json
    assert by_name == phaze(*RUN, *options_of(name)).json
    # What is given beside the name wins.
    given = phaze(*RUN, "--software", name, "--optimizer", "sgd", "--launch", "graphs").json
    assert given["time_per_batch_s"] < by_name["time_per_batch_s"]


def test_every_name_has_options_that_there_are() -> None:
    """They are those of a training run, and every name is in the table."""
    assert set(SOFTWARE) == set(get_args(SoftwareName))
    training = {field.name for field in fields(Training)}
    for each in SOFTWARE.values():
        own = {field.name for field in fields(each)}
        assert own - training == {"fusion", "attention_kernel", *PRECISIONS_OF}
        for precision in RECIPES:
            options: dict[str, Any] = {**each.fp8_weights(precision)}
            assert Training(8, zero=3, optimizer=each.optimizer, precision=precision, **options)


def test_weights_are_narrow_where_the_software_has_them_so(phaze: Phaze) -> None:
    """In fp8, not in 16 bits; what is given beside the name wins."""
    run = (*RUN, "--software", "megatron-bridge", "--set", "fp8_ratio=2")
    narrow = ("--precision", "fp8")
    by_name = phaze(*run, *narrow).json
    stated = ("--fp8-primary-weights", "--fp8-param-gather")
    assert by_name == phaze(*run, *narrow, *stated).json
    wide = phaze(*run, *narrow, "--no-fp8-primary-weights", "--no-fp8-param-gather").json
    assert wide["placement"] != by_name["placement"]
    assert phaze(*run).json["placement"]["stages"] != by_name["placement"]["stages"]


def test_products_add_up_where_the_software_has_them_so(phaze: Phaze) -> None:
    """Below ZeRO 2; what is given beside the name wins."""
    run = (*RUN, "--zero", "1", "--software", "megatron")
    by_name = phaze(*run).json["time_breakdown_s"]
    beside = phaze(*run, "--no-fused-accumulation").json["time_breakdown_s"]
    assert by_name == phaze(*run, "--fused-accumulation").json["time_breakdown_s"]
    assert 0.0 < by_name["gradient_accumulation"] < beside["gradient_accumulation"]


def test_fused_attention_has_the_kernel_of_the_software(phaze: Phaze) -> None:
    """Where the chip has its constants; another chip keeps its own kernel."""
    fused = (*RUN, "--attention", "flash", "--sequence", "8192")
    times_s = [
        phaze(*fused, *options).json["time_per_batch_s"]
        for options in (("--software", "mpt"), options_of("mpt"))
    ]
    assert times_s[0] > times_s[1]
    other = tuple("v100" if word == "a100-80" else word for word in fused)
    assert (
        phaze(*other, "--software", "mpt").json["layers"]
        == phaze(*other, *options_of("mpt")).json["layers"]
    )


def test_an_unknown_name_is_refused(phaze: Phaze) -> None:
    """With the names that there are."""
    refused = phaze(*RUN, "--software", "megatorch")
    assert refused.code == 2 and "torchtitan-eager" in refused.err
