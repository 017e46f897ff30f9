"""The options of a point as controls of a page: all of them, and nothing else."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phaze_opt.cli.controls import controls, stated_options
from phaze_opt.cli.point import evaluate
from phaze_opt.cli.point_options import PointOptions

from phaze_opt.errors import InputError

LEAST = {
    "model": ["bert-large"],
    "accelerator": ["h100"],
    "cluster": ["dgx-h100"],
    "devices": ["8"],
    "global_batch": ["64"],
    "microbatch": ["1"],
}


def test_every_option_is_a_control() -> None:
    """Of its kind, with its help and its flag: a new option needs no change of the page."""
    made = {control.name: control for control in controls()}
    assert list(made) == [field.name for field in dataclasses.fields(PointOptions)]
    assert all(control.help for control in made.values())
    assert made["changes"].flag == "--set" and made["changes"].kind == "list"
    assert made["residency"].choices == ("whole", "tiles", "none")
    assert made["recompute"].choices[:3] == ("none", "selective", "full")
    assert (made["power_limit_w"].kind, made["devices"].kind) == ("number", "whole")
    assert set(made) <= set(inspect.signature(evaluate).parameters)


def test_defaults_read_back_as_the_options() -> None:
    """What a page states of itself is what the command line takes where nothing is given."""
    stated = {control.name: [control.default or ""] for control in controls()} | LEAST
    least = {name: texts[0] for name, texts in LEAST.items()}
    assert stated_options(stated) == stated_options(LEAST)
    assert stated_options(LEAST).model == least["model"]
    assert stated_options(LEAST | {"gather_copies": ["false"]}).gather_copies is False
    assert stated_options(LEAST).gather_copies is None


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ({"devices": ["8.5"]}, "devices is '8.5', but it must be a whole number."),
        ({"devices": ["1e400"]}, "must be a whole number"),
        ({"devices": ["8", "9"]}, "devices is stated 2 times; state it once."),
        ({"power_limit_w": ["nan"]}, "must be a number"),
        ({"recompute": ["all"]}, "Unknown recompute 'all'"),
        ({"sequence_parallel": ["yes"]}, "must be true or false"),
        ({"residency": ["yes"]}, "Unknown residency 'yes'"),
        ({"model": [""]}, "model is missing."),
        ({"devises": ["8"]}, "Did you mean 'devices'"),
        ({"changes": ["x"] * 100}, "longer than anything"),
        ({"model": ["x" * 5_000]}, "longer than anything"),
    ],
)
def test_what_is_not_allowed_is_one_sentence(stated: dict[str, list[str]], sentence: str) -> None:
    """It names the option."""
    with pytest.raises(InputError) as refused:
        stated_options(LEAST | stated)
    assert sentence in str(refused.value)


@given(st.dictionaries(st.sampled_from([c.name for c in controls()]), st.lists(st.text())))
def test_any_text_is_read_or_refused(stated: dict[str, list[str]]) -> None:
    """Nothing that an address can hold ends in another error."""
    try:
        options = stated_options(LEAST | stated)
    except InputError:
        return
    assert isinstance(options.devices, int)
