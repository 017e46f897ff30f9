"""Layers of experts: the traffic around their products is found again in what it predicts."""

import numpy as np
import pytest

from phaze_opt.calibration.expert_layers import (
    ExpertCalls,
    ExpertLayer,
    estimate_expert_layer,
    fit_expert_layers,
    row_bytes_of,
)
from phaze_opt.calibration.products import products_graph, products_s
from phaze_opt.codec import data_rows, data_table
from phaze_opt.errors import InputError
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.validation.expert_layers import expert_layer
from phaze_opt.workload.graph import Gemm

LAYERS = [
    ExpertLayer(tokens, 2048, inner, top_k, 32)
    for tokens in (1024, 8192)
    for inner in (512, 4096)
    for top_k in (1, 4)
]


def test_a_fit_finds_the_traffic_again() -> None:
    """Rows made with a number give it back."""
    chip = load_accelerator("h100")
    measured_s = ExpertCalls(LAYERS, chip).seconds({"row_bytes": 10.0})
    (found,) = fit_expert_layers(LAYERS, measured_s, chip).constants
    assert found.value == pytest.approx(10.0, rel=1e-3)


@pytest.mark.parametrize("sizes", [(2**30, 2**30, 2**30, 1, 1), (1, 1, 2**30, 2**30, 2**40)])
def test_layers_that_no_number_holds_are_refused(sizes: tuple[int, int, int, int, int]) -> None:
    """By the work of their products, whatever each size is alone."""
    with pytest.raises(InputError, match="work of a product"):
        ExpertLayer(*sizes)
    largest = ExpertLayer(2**20, 2**19, 2**19, 1, 1)
    seconds = estimate_expert_layer(largest, load_accelerator("h100"), 8.0).latency_s
    assert 0.0 < seconds < np.inf


def test_one_expert_without_traffic_is_a_dense_layer() -> None:
    """One expert for every token multiplies as a dense layer does."""
    chip = load_accelerator("b200")
    layer = ExpertLayer(4096, 2048, 8192, 1, 1)
    dense_s = products_s(products_graph([Gemm(4096, 16384, 2048), Gemm(4096, 2048, 8192)]), chip)
    seconds = ExpertCalls([layer], chip).seconds({"row_bytes": 0.0})
    assert dense_s.sum() < seconds[0] < 1.2 * dense_s.sum()  # the activation is beside them


@pytest.mark.parametrize("chip", ["h100_sxm", "b200_sxm"])
def test_the_stated_traffic_is_that_of_the_rows(chip: str) -> None:
    """The data states what the fit gives."""
    provenance = data_table("validation", "expert_layers.toml")
    rows = [row for row in data_rows("validation", "expert_layers.csv") if row["chip"] == chip]
    measured_s = np.array([float(row["latency_ms"]) * 1e-3 for row in rows])
    accelerator = load_accelerator(provenance["accelerator"][chip])
    (found,) = fit_expert_layers(list(map(expert_layer, rows)), measured_s, accelerator).constants
    assert found.value == pytest.approx(row_bytes_of(provenance["accelerator"][chip]), rel=1e-3)
