"""Tests of `phaze_opt.passes.least_units`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.bounds.core_units import core_units
from phaze_opt.bounds.space_chips import SpaceChips, allowed_chips
from phaze_opt.estimator.least_seconds import least_seconds
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.graphs import graphs_of
from phaze_opt.passes.least_units import least_of_units
from phaze_opt.spec.freezing import check_names
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import AreaSpec
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload
from tests.study.fakes import toy_spec

SPACES = {
    "tpuv4-lanes": Space(
        "tpuv4-lanes",
        num_tc=(1, 8),
        num_vc=[1, 2, 6],
        pe_x=[64, 128],
        pe_y=[64, 128],
        pe_vc=[96, 512],
    ),
    "h100": Space("h100", num_tc=[66, 132], num_vc=[66, 132], glb_mib=[25, 50]),
}
WORKLOAD = load_workload("bert-large", attention="flash", tensor_parallel=(1, 4), microbatch=(2,))


@pytest.fixture(scope="module", params=SPACES)
def chips(request: pytest.FixtureRequest) -> SpaceChips:
    """Return the chips of a space."""
    area = AreaSpec(model="chip", max_of="h100")
    spec = toy_spec(space=SPACES[request.param], area=area, baselines=())
    return allowed_chips(check_names(replace(spec, model="bert-large")))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_no_operator_is_faster_on_any_chip(chips: SpaceChips, data: st.DataObject) -> None:
    """In either mode, and it takes cores and the global buffer for no less, on either kind."""
    variant = data.draw(st.sampled_from(WORKLOAD.variants))
    layer = data.draw(st.sampled_from(variant.layers))
    graph = data.draw(st.sampled_from(list(graphs_of(layer, Training(64)).values())))
    boxes = np.arange(len(chips.table.chips))
    units = core_units(chips)
    assert units is not None
    cluster, tensor = load_cluster("tpuv4-ici-flat", 16), variant.tensor_parallel
    least = least_of_units(graph, units.of(boxes), 1.0)
    rows = np.arange(len(chips))
    of_boxes, every = chips.boxes_of(rows), chips.architectures(rows)
    for some in least_seconds(graph, every, cluster, tensor):
        one, whole = some.one_core, some.all_cores
        num_tc, num_vc = some.chips.column("num_tc"), some.chips.column("num_vc")
        exact = (
            np.minimum(one.busy_s, whole.busy_s),
            whole.busy_s,
            np.minimum(one.latency_s / num_tc, whole.latency_s),
            np.minimum(one.latency_s / num_vc, whole.latency_s),
            np.minimum(one.glb_s, whole.latency_s),
        )
        for bound, seconds in zip(least, exact, strict=True):
            assert (bound[of_boxes[some.where]] <= seconds * (1.0 + 1e-12)).all()
    # Somewhere it says more than nothing.
    assert all((bound > 0.0).any() for bound in (least.fastest_s, least.tc_s, least.glb_s))
