"""More hardware is never slower: random points, each with more of one thing at the same placement.

    python -m tests.more_hardware --cases 20000
    python -m tests.more_hardware --cases 1500 --field devices --network tpuv4-torus

Half of those with twice the devices find their placement. What is proven may not move at all, what
is not by no more than the gap of its schedules, and of its placement. Not asked,
because it truly is not monotone: the edges of arrays and the width of lanes (pieces are rounded up
to them), the tensor degree, clocks without the buffers that go with them, and more vector cores on
the cache of a GPU where they work on more rows of a norm than it keeps (`overflows_the_cache`).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from phaze_opt.estimator.vector_core import kept_row_bytes
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.fields import with_values
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.hardware.presets import accelerator_presets, load_accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.presets import cluster_presets, load_cluster
from phaze_opt.point import Placing
from phaze_opt.precision import PRECISIONS
from phaze_opt.training import Training
from phaze_opt.units import GIB, MIB
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import load_workload

MODELS = {
    "gpt:layers=4,hidden=512,heads=8,sequence=512,vocab=8000": 512,
    "gpt:layers=4,hidden=2048,heads=16,sequence=1024,vocab=32000,attention=flash": 2048,
    "llama:layers=4,hidden=1024,heads=16,kv_heads=8,ffn=2816,sequence=512,vocab=32000": 1024,
    "bert-large": 1024,
}
"""Models with the elements of a row that their norms work on."""
QUICK = next(iter(MODELS))
TENSOR_DEGREES = (1, 2, 4, 8)
CHIP_FIELDS = (
    "clock_hz",
    "hbm_bytes_per_s",
    "glb_bytes_per_cycle",
    "hbm_bytes",
    "glb_bytes",
    "num_tc",
    "num_vc",
)
FIELDS = (*CHIP_FIELDS, "link", "devices")
ROUNDING = 1e-9
NETWORKS = tuple(name for name in sorted(cluster_presets()) if name != "tpu7x-mesh")
"""Those that join twice the devices of any case."""
TORI = tuple(name for name in NETWORKS if cluster_presets()[name].levels[0].topology == "torus")


@dataclass(frozen=True)
class Case:
    """A point, and the same with more of one field."""

    model: str
    chip: Accelerator
    larger: Accelerator
    cluster: Cluster
    faster: Cluster
    training: Training
    placement: Placing
    field: str
    factor: float


def cases(
    count: int,
    seed: int = 0,
    fields: Sequence[str] = FIELDS,
    networks: Sequence[str] = NETWORKS,
) -> Iterator[Case]:
    """Yield random cases."""
    rng = random.Random(seed)
    while count > 0:
        tensor = rng.choice(TENSOR_DEGREES)
        pipeline, data = rng.choice([(1, 1), (1, 4), (2, 2), (2, 1), (4, 2)])
        network, devices = rng.choice(networks), pipeline * data * tensor
        cluster = load_cluster(network, devices)
        chip = _chip(rng)
        field = rng.choice(fields)
        factor = rng.choice([1.05, 1.1, 1.2, 1.5, 2.0, rng.uniform(1.0, 4.0)])
        faster, larger = cluster, chip
        if field == "devices":
            factor, faster = 2.0, load_cluster(network, 2 * devices)
        elif field == "link":
            place = rng.randrange(len(cluster.levels))
            levels = list(cluster.levels)
            rate = levels[place].bandwidth_bytes_per_s * factor
            levels[place] = replace(levels[place], bandwidth_bytes_per_s=rate)
            faster = replace(cluster, levels=tuple(levels))
        else:
            value = getattr(chip, field)
            if field in ("num_tc", "num_vc"):
                factor = 2.0
            more = int(value * factor) if isinstance(value, int) else value * factor
            larger = with_values(chip, {field: more}, "more hardware")
        microbatch = rng.choice([1, 2, 4])
        training = Training(
            global_batch=microbatch * data * rng.choice([1, 2, 8]),
            microbatch=microbatch,
            recompute=rng.choice(["none", "selective", "full"]),
            optimizer=rng.choice(["sgd", "adam"]),
            sequence_parallel=tensor > 1 and rng.random() < 0.3,
            zero=rng.choice([0, 1, 2, 3]),
            pipeline_schedule=rng.choice(["1f1b", "gpipe"]),
            overlap=rng.choice(["none", "partial", "data", "all"]),
            residency=rng.random() < 0.5,
        )
        placement: Placing = (pipeline, data, tensor)
        if field == "devices" and rng.random() < 0.5:
            placement = "solve"
        model = rng.choice(list(MODELS))
        case = Case(model, chip, larger, cluster, faster, training, placement, field, factor)
        if not overflows_the_cache(case):
            yield case
            count -= 1


def overflows_the_cache(case: Case) -> bool:
    """Say whether only the larger chip has more rows of a norm in work than its cache keeps."""
    chips = (case.chip, case.larger)
    glb_bytes, vector_cores, is_managed = (
        np.array([getattr(chip, name) for chip in chips])
        for name in ("glb_bytes", "num_vc", "concurrent_operators")
    )
    kept = kept_row_bytes(glb_bytes, vector_cores, is_managed=is_managed).tolist()
    row_bytes = PRECISIONS["bf16"].operand_bytes * MODELS[case.model]
    return bool(kept[1] < row_bytes <= kept[0])


def _chip(rng: random.Random) -> Accelerator:
    """Draw a preset, or a chip of no paper."""
    if rng.random() < 0.4:
        with_hbm = [
            name for name, each in accelerator_presets().items() if each.accelerator.hbm_bytes
        ]
        return replace(load_accelerator(rng.choice(sorted(with_hbm))), hbm_bytes=512 * GIB)
    return Accelerator(
        num_tc=2 ** rng.randrange(9),
        num_vc=2 ** rng.randrange(9),
        pe_x=2 ** rng.randrange(3, 9),
        pe_y=2 ** rng.randrange(3, 9),
        pe_vc=2 ** rng.randrange(4, 11),
        glb_bytes=2 ** rng.randrange(1, 9) * MIB,
        glb_bytes_per_cycle=rng.choice([512.0, 4096.0, 16384.0]),
        hbm_bytes=512 * GIB,
        hbm_bytes_per_s=rng.choice([4e11, 1.2e12, 3e12, 8e12]),
        clock_hz=rng.choice([4e8, 1.05e9, 2e9]),
        calibration=Calibration(
            hbm_efficiency=0.85, operator_overhead_s=rng.choice([0.0, 1e-6, 5e-6])
        ),
    )


_workloads: dict[tuple[str, int, bool], Workload] = {}


def workload_of(case: Case) -> Workload:
    """Return the model of a case, captured at all tensor degrees."""
    training = case.training
    key = case.model, training.microbatch, training.sequence_parallel
    if key not in _workloads:
        _workloads[key] = load_workload(
            case.model,
            microbatch=(training.microbatch,),
            tensor_parallel=TENSOR_DEGREES,
            sequence_parallel=training.sequence_parallel,
        )
    return _workloads[key]


def _evaluated(case: Case, chip: Accelerator, cluster: Cluster) -> Evaluation:
    """Evaluate one of the two points of a case."""
    return evaluate(workload_of(case), chip, cluster, case.training, case.placement)


def quickly(case: Case) -> Case:
    """Return a case of a model that is captured quickly."""
    data = case.training.global_batch // case.training.microbatch
    if isinstance(case.placement, tuple):
        data = case.placement[1]
    training = replace(case.training, global_batch=4 * data, microbatch=1)
    return replace(case, model=QUICK, training=replace(training, sequence_parallel=False))


def slowdown(case: Case, training: Training | None = None) -> tuple[float, float]:
    """Return how much slower the larger point is, and what its schedules, or placement, leave open.

    Parameters
    ----------
    case
        The two points.
    training
        Of the larger one, if not the same.
    """
    before = _evaluated(case, case.chip, case.cluster)
    if training is not None:
        case = replace(case, training=training)
    after = _evaluated(case, case.larger, case.faster)
    if before.time_per_batch_s is None:
        return 0.0, 0.0
    if after.time_per_batch_s is None:
        return float("inf"), 0.0
    passes = [
        proof
        for layer in after.layers
        for proof in (layer.forward_schedule, layer.backward_schedule, layer.recompute_schedule)
        if proof is not None
    ]
    gap = max([proof.gap for proof in passes], default=0.0)
    if after.placement is not None:
        gap = 1.0 - (1.0 - gap) * (1.0 - (after.placement.gap or 0.0))
    return after.time_per_batch_s / before.time_per_batch_s - 1.0, gap


def beyond_the_gap(more: float, gap: float) -> bool:
    """Say whether a slowdown is more than rounding and the gap of the schedules."""
    return more > gap / (1.0 - gap) + ROUNDING


def main() -> int:
    """Print what is slower, by field; fail if anything is beyond what is stated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--field", choices=FIELDS, action="append")
    parser.add_argument("--network", choices=NETWORKS, action="append")
    options = parser.parse_args()
    tried: Counter[str] = Counter()
    slower: Counter[str] = Counter()
    beyond: Counter[str] = Counter()
    worst: dict[str, float] = {}
    fields, networks = options.field or FIELDS, options.network or NETWORKS
    for case in cases(options.cases, options.seed, fields, networks):
        more, gap = slowdown(case)
        tried[case.field] += 1
        if more > ROUNDING:
            slower[case.field] += 1
            worst[case.field] = max(worst.get(case.field, 0.0), more)
        if beyond_the_gap(more, gap):
            beyond[case.field] += 1
            print(f"{more:.3%} slower, gap {gap:.3%}: {case}", file=sys.stderr)
    for field in fields:
        print(
            f"{field:20} {tried[field]:6} tried, {slower[field]:4} slower, {beyond[field]:4} beyond"
            f" the gap, worst {worst.get(field, 0.0):.4%}"
        )
    return int(sum(beyond.values()) > 0)


if __name__ == "__main__":
    sys.exit(main())
