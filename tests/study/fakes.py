"""A study that costs nothing: a toy workload and a cost model of one line."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from phaze_opt.evaluation import Evaluation
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.passes.layers import LayerEvaluation
from phaze_opt.passes.scheduled import ScheduleProof
from phaze_opt.placement.placement_problem import ChunkWork, Placement, Stage, StageMemory
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import SearchSpec, StudySpec
from phaze_opt.store.opening import open_storage
from phaze_opt.store.storage import Storage
from phaze_opt.study.study import Study, create_study, load_study
from phaze_opt.training import Training
from phaze_opt.workload.graph import (
    BytesByRecompute,
    Layer,
    OperatorGraph,
    Workload,
    WorkloadVariant,
)

COUNT_VARIABLE = "PHAZE_TEST_COUNT"
"""Names a file in which every computed point leaves one line."""

STUCK_VARIABLE = "PHAZE_TEST_STUCK"
"""Names a file that is there once a worker is stuck."""

_NOTHING = BytesByRecompute(0, 0, 0)
_LAYER = Layer(
    "block",
    OperatorGraph(),
    OperatorGraph(),
    OperatorGraph(),
    10,
    0,
    _NOTHING,
    _NOTHING,
    _NOTHING,
    0,
)
TOY = Workload(
    model="toy",
    sequence=1,
    parameters=10,
    variants=(WorkloadVariant(1, 1, False, (_LAYER,), (("block.0", 0),), ()),),
)


_PROOF = ScheduleProof("optimal", 1.0, 0.0)
_BLOCK = LayerEvaluation(
    name="block",
    count=1,
    forward_s=1.0,
    backward_s=2.0,
    recompute_s=0.0,
    parameters=10,
    stash_bytes=20,
    forward_schedule=_PROOF,
    backward_schedule=_PROOF,
    bound_by_s={"compute": 3.0},
    energy_by_level_j={"hbm": 1.0},
)
_STAGE = Stage(
    layers=("block",),
    devices=1,
    load_s=3.0,
    memory_bytes=StageMemory(20, 20, 0, 20, 10),
    work=(ChunkWork(1.0, 2.0, 0.0),),
    synchronisation_s=0.0,
    optimizer_s=0.0,
    gather_s=0.0,
    communication=(),
)
_PLACEMENT = Placement(
    pipeline=1,
    data=8,
    tensor=1,
    rank_order="tensor-data-pipeline",
    pipeline_schedule="1f1b",
    microbatches=8,
    stages=(_STAGE,),
    time_per_batch_s=24.0,
    time_breakdown_s={"forward": 8.0, "backward": 16.0},
)


def toy_spec(**changes: Any) -> StudySpec:
    """Return the spec of a study of the toy workload."""
    fields: dict[str, Any] = {
        "name": "toy",
        "model": "toy",
        "cluster": "tpuv4-ici-flat",
        "devices": 8,
        "global_batch": 64,
        "search": SearchSpec(sampler="random", trials=20, seed=7),
    }
    return StudySpec(**(fields | changes))


def toy_evaluator(
    workload: Workload,
    accelerator: Accelerator,
    cluster: Cluster,
    training: Training,
    cache: MutableMapping[str, Schedule],
) -> Evaluation:
    """More cores are faster, up to a point; a large microbatch does not fit without recompute."""
    path = os.environ.get(COUNT_VARIABLE)
    if path is not None:
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(f"{accelerator!r} {training!r}\n")
    feasible = training.microbatch < 8 or training.recompute == "full"
    speed = min(
        float(accelerator.num_tc * accelerator.pe_x * accelerator.pe_y),
        1024.0 * accelerator.num_vc * accelerator.pe_vc,
    )
    throughput = speed / (10 + training.microbatch) if feasible else 0.0
    return Evaluation(
        feasible=feasible,
        reason=None if feasible else "The stash does not fit.",
        throughput_samples_per_s=throughput,
        time_per_batch_s=training.global_batch / throughput if feasible else None,
        area_mm2=accelerator.area_mm2,
        mfu=0.5 if feasible else 0.0,
        placement=_PLACEMENT if feasible else None,
        layers=(_BLOCK,),
        time_breakdown_s=_PLACEMENT.time_breakdown_s if feasible else {},
        energy_by_level_j={"hbm": 1.0},
        violation=0.0 if feasible else 0.25,
    )


def open_evaluator(*args: Any) -> Evaluation:
    """Leave one pass of every point open."""
    evaluation = toy_evaluator(*args)
    open_proof = ScheduleProof("feasible", 0.9, 0.1, "dynamic-program")
    return replace(evaluation, layers=(replace(_BLOCK, backward_schedule=open_proof),))


def slow_evaluator(*args: Any) -> Evaluation:
    """Do the same in a tenth of a second."""
    time.sleep(0.1)
    return toy_evaluator(*args)


def stuck_evaluator(*args: Any) -> Evaluation:
    """Never come back from a point that is not a baseline, and leave a sign of it."""
    if args[1].num_tc != 8:
        Path(os.environ[STUCK_VARIABLE]).touch()
        time.sleep(3600)
    return toy_evaluator(*args)


def deadly_evaluator(*args: Any) -> Evaluation:
    """Kill the worker on one training option, as running out of memory would."""
    training = args[3]
    accelerator = args[1]
    if training.microbatch == 2 and accelerator.num_tc != 8:
        os.kill(os.getpid(), signal.SIGKILL)
    return toy_evaluator(*args)


def failing_evaluator(*args: Any) -> Evaluation:
    """Fail on every point that is not a baseline."""
    if args[1].num_tc != 8:
        raise RuntimeError("the cost model stumbled")
    return toy_evaluator(*args)


def toy_study(url: str, **changes: Any) -> Study:
    """Create a study of the toy workload, with the toy cost model."""
    storage = open_storage(url, create=True)
    study = create_study(toy_spec(**changes), storage, workload=TOY)
    study.evaluator = toy_evaluator
    return study


def reopened(url: str, name: str = "toy") -> Study:
    """Open the study as another process would."""
    storage: Storage = open_storage(url)
    study = load_study(name, storage)
    study.evaluator = toy_evaluator
    return study


def quick_study(
    storage: Storage | str, trials: int = 3, name: str = "toy", global_batch: int = 64
) -> Study:
    """Create a study with one training option, and so few evaluations of baselines."""
    spec = toy_spec(
        global_batch=global_batch,
        space=Space.phaze(microbatch=(2, 2), recompute=["none"]),
        search=SearchSpec(sampler="random", trials=trials, seed=7),
    )
    study = create_study(spec, storage, name=name, workload=TOY)
    study.evaluator = toy_evaluator
    return study
