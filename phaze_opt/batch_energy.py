"""The energy of a batch: operators, gradients, optimizer and network."""

from __future__ import annotations

from collections.abc import Sequence

from phaze_opt.estimator.traffic import ENERGY_LEVELS
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import energy_per_event
from phaze_opt.passes.layer_cost import added_parameters, local_parameters
from phaze_opt.passes.layers import DegreeCost, LayerEvaluation
from phaze_opt.placement.memory import Shards
from phaze_opt.placement.placement_problem import Placement
from phaze_opt.training import Training


def batch_energy_by_level_j(
    solved: Placement,
    cost: DegreeCost,
    accelerator: Accelerator,
    training: Training,
    evaluated: Sequence[LayerEvaluation] | None = None,
) -> dict[str, float]:
    """Return the dynamic energy of one batch on all devices.

    Parameters
    ----------
    solved
        Where the layers are.
    cost
        Of the layers, at its tensor degree.
    accelerator, training
        What runs.
    evaluated
        The distinct layers, as often as the stages hold them; by default once for the whole model.

    Returns
    -------
    Joules by level of `phaze_opt.estimator.traffic.ENERGY_LEVELS`.
    """
    joules = energy_per_event([accelerator])
    optimizer = training.state
    chain = dict(zip(cost.variant.names, cost.chain, strict=True))
    by_stage = [[chain[name] for name in stage.layers] for stage in solved.stages]
    parameters = sum(map(local_parameters, by_stage))
    # A model may have no parameters.
    added_share = sum(map(added_parameters, by_stage)) / max(parameters, 1)
    shards = Shards.of(training.zero, training.sharing(solved.degrees.as_replicas.data))
    # Of what replicas share out, each updates its share of the experts elsewhere too.
    elsewhere = sum(layer.elsewhere_parameters for layers in by_stage for layer in layers)
    energy_j = {
        level: solved.microbatches
        * sum(layer.count * layer.energy_by_level_j[level] for layer in evaluated or cost.layers)
        for level in ENERGY_LEVELS
    }
    after_first = solved.microbatches - 1
    update_bytes = (
        1.0 / shards.optimizer * training.step_bytes
        + training.cast_bytes
        + after_first * (1.0 / shards.gradients) * optimizer.accumulation_bytes * added_share
        + solved.microbatches * sum(training.copy_bytes)
    )
    memory, j_per_byte = "hbm", joules.hbm_j_per_byte
    if not accelerator.has_hbm:
        # Half of the bytes are read from the global buffer, and half are written to it.
        memory = "glb"
        of_glb = joules.glb_read_j_per_byte + joules.glb_write_j_per_byte
        j_per_byte = float(of_glb[0, 0]) / 2.0
    energy_j[memory] += parameters * update_bytes * j_per_byte
    if elsewhere and shards.optimizer > 1:
        moved_bytes = training.step_bytes / shards.optimizer
        if shards.gradients > 1:
            moved_bytes += after_first * optimizer.accumulation_bytes / shards.gradients
        energy_j[memory] += elsewhere * moved_bytes * j_per_byte
    sent_bytes = sum(
        exchange.sent_bytes for stage in solved.stages for exchange in stage.communication
    )
    energy_j["network"] += sent_bytes * joules.network_j_per_byte
    of_stage = solved.devices // solved.pipeline
    return {level: of_stage * value for level, value in energy_j.items()}
