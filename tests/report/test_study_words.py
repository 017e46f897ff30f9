"""Sentences about studies and their designs."""

from __future__ import annotations

import pytest

from phaze_opt.report.study_words import accelerator_words, training_words, value_words
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.objectives import ObjectiveName
from tests.study.fakes import toy_spec

PARAMS: dict[str, Scalar] = {
    "num_tc": 8,
    "num_vc": 2,
    "pe_x": 128,
    "pe_y": 64,
    "pe_vc": 1024,
    "glb_mib": 128,
    "hbm_gib": 32,
    "microbatch": 4,
    "recompute": "none",
}


def test_a_chip_in_words() -> None:
    """A chip is described by its cores and memories."""
    expected = "8 TC of 128×64, 2 VC of 1024 lanes, GLB 128 MiB, HBM 32 GiB"
    assert accelerator_words(PARAMS) == expected
    assert training_words(PARAMS) == "microbatch 4, recompute none"
    searched: dict[str, Scalar] = {**PARAMS, "hbm_gb_per_s": 1600, "zero": 1}
    assert accelerator_words(searched) == f"{expected}, HBM 1,600 GB/s"
    assert training_words(searched) == "microbatch 4, recompute none, zero 1"
    assert training_words({"num_tc": 4}) == "as the study says"


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("throughput", 81.15321, "81.15 samples/s"),
        ("throughput", 248_991.4, "248,991 samples/s"),
        ("power", 0.12345, "0.1235 W"),
    ],
)
def test_a_value_in_words(kind: ObjectiveName, value: float, words: str) -> None:
    """Below a thousand a throughput keeps four digits, as every other value does."""
    assert value_words(toy_spec(objectives=(kind,)), [value]) == words
