import pytest

from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses, local_parameters
from phaze_opt.placement.memory import UNSHARDED, Shards, stage_memory


def layer(parameters: int, tied: int = 0, stash: int = 0, transient: int = 0) -> LayerCost:
    """Return a layer of which only the memory matters."""
    return LayerCost("", LayerPasses(), parameters, tied, stash, transient, 0)


def test_state_per_parameter() -> None:
    """Adam in mixed precision holds 18 bytes per parameter, SGD in bf16 holds 4."""
    layers = [layer(1000)]
    assert stage_memory(layers, 1, OPTIMIZERS["adam"]).total == 18_000
    assert stage_memory(layers, 1, OPTIMIZERS["sgd"]).total == 4_000


@pytest.mark.parametrize(("layers", "hidden", "pipeline"), [(48, 6144, 1), (96, 12288, 8)])
def test_korthikanti_state(layers: int, hidden: int, pipeline: int) -> None:
    """Blocks of the 22B model at tensor degree 8, and of 175B on 8 stages too, hold 45.6 GiB."""
    block = 12 * hidden * hidden // 8 + 7 * hidden // 8 + 6 * hidden
    memory = stage_memory([layer(block)] * (layers // pipeline), 1, OPTIMIZERS["adam"])
    assert abs(memory.total / 2**30 - 45.6) < 0.05


def test_tied_parameters_count_once_in_a_stage() -> None:
    """Embedding and head on one stage share their tied weights, on two each holds them."""
    embedding, head = layer(100, tied=80), layer(90, tied=80)
    assert local_parameters([embedding, head]) == 110
    assert local_parameters([embedding]) == 100
    assert local_parameters([head]) == 90


def test_stash_and_working_set() -> None:
    """Stashes add up over layers and microbatches in flight; of working sets the largest counts."""
    layers = [layer(0, stash=10, transient=7), layer(0, stash=20, transient=5)]
    memory = stage_memory(layers, 3, OPTIMIZERS["sgd"])
    assert memory.stash == 90
    assert memory.transient == 7
    assert memory.total == 97


def test_every_zero_stage_shares_out_one_thing_more() -> None:
    """First the optimizer's state, then gradients, then weights."""
    assert Shards.of(0, 8) == UNSHARDED == Shards(weights=1, gradients=1, optimizer=1)
    assert Shards.of(1, 8) == Shards(optimizer=8)
    assert Shards.of(2, 8) == Shards(gradients=8, optimizer=8)
    assert Shards.of(3, 8) == Shards(weights=8, gradients=8, optimizer=8)
