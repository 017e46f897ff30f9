"""Evaluations whose numbers may change only together with ``COST_MODEL_VERSION``.

They cover tensor degrees 1 to 8, ZeRO 0 to 3, sequence parallelism, every recompute,
pipeline schedule and optimizer, with and without residency (in managed buffers and in caches), GPU
and TPU kinds of chips, and flat, two-level and torus networks.
``python -m tests.golden`` writes the file anew; it refuses if numbers have changed and the version
has not.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

from phaze_opt.evaluation import COST_MODEL_VERSION, Evaluation, evaluate
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.point import Placing
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload

PATH = Path(__file__).parent / "data" / "golden_evaluations.json"

_CHIPS: list[tuple[str, dict[str, str]]] = [
    ("tpuv4-lanes", {}),
    ("a100-80", {}),
    ("tpuv4-lanes", {"num_tc": "32", "pe_x": "64", "pe_y": "64", "glb_mib": "32"}),
    ("h100", {}),
    ("tpuv4-phaze", {"num_tc": "2", "num_vc": "16", "pe_x": "256", "hbm_gib": "80"}),
]
_CLUSTERS = ("flat-4GiB", "dgx-a100", "tpuv4-torus", "tpuv4-ici-flat")
_GPT = "gpt:layers=8,hidden=1024,heads=16,sequence=512,vocab=32000"
_LLAMA = "llama:layers=6,hidden=1024,heads=16,kv_heads=8,ffn=2816,sequence=512,vocab=32000"
_TRAININGS: list[dict[str, Any]] = [
    {"optimizer": "sgd", "overlap": "none"},
    {"optimizer": "adam", "recompute": "full"},
    {"optimizer": "adam", "zero": 1, "recompute": "selective", "overlap": "none"},
    {"optimizer": "adam", "zero": 2, "sequence_parallel": True},
    {"optimizer": "adam", "zero": 3},
    {"optimizer": "adam", "pipeline_schedule": "gpipe"},
    {"optimizer": "sgd", "pipeline_schedule": "interleaved", "interleave": 2},
    {
        "optimizer": "adam",
        "zero": 3,
        "recompute": "full",
        "sequence_parallel": True,
        "overlap": "all",
    },
    {"optimizer": "adam", "zero": 1, "pipeline_schedule": "interleaved", "interleave": 2},
]
_PLACEMENTS: list[Placing] = [
    "solve", (1, 64, 1), (2, 16, 2), (4, 4, 4), (2, 4, 8), (1, 16, 4), (4, 16, 1), (1, 8, 8),
]  # fmt: skip
_COUNT = 72


def cases() -> list[dict[str, Any]]:
    """Return the inputs of the golden evaluations.

    Lists of lengths without a common divisor are run through in step, so that their entries meet in
    ever new combinations.
    """
    found = []
    for index, residency in itertools.product(range(_COUNT), (False, True)):
        chip, changes = _CHIPS[index % len(_CHIPS)]
        model = "bert-large" if index % 12 == 0 else (_GPT, _LLAMA)[index // 9 % 2]
        if residency and index % 3:
            continue  # fewer of them
        found.append(
            {
                "accelerator": chip,
                "set": changes,
                "model": model,
                "cluster": _CLUSTERS[(index + index // 20) % len(_CLUSTERS)],
                "devices": 64,
                "training": {
                    "global_batch": 256,
                    "microbatch": (1, 2)[index % 2],
                    **_TRAININGS[index % len(_TRAININGS)],
                    "residency": residency,
                },
                "placement": _PLACEMENTS[(index + index // 8) % len(_PLACEMENTS)],
            }
        )
    # So small a batch leaves most devices unused: found and given, it takes a slice of the torus.
    small = {"global_batch": 8, "microbatch": 2, "optimizer": "adam", "zero": 1}
    shared = {"accelerator": "tpuv4-lanes", "set": {}, "model": _GPT, "cluster": "tpuv4-torus"}
    for placement in ("solve", (1, 4, 2)):
        found.append({**shared, "devices": 1024, "training": small, "placement": placement})
    return found


def run_case(case: dict[str, Any], cache: dict[str, Schedule]) -> Evaluation:
    """Evaluate one case."""
    placement, training = case["placement"], Training(**case["training"])
    workload = load_workload(
        case["model"],
        tensor_parallel=(1, 2, 4, 8) if placement == "solve" else (placement[2],),
        microbatch=(training.microbatch,),
        sequence_parallel=training.sequence_parallel,
    )
    return evaluate(
        workload,
        load_accelerator(case["accelerator"], **case["set"]),
        load_cluster(case["cluster"], case["devices"]),
        training,
        placement if placement == "solve" else tuple(placement),
        cache=cache,
    )


def numbers(evaluation: Evaluation) -> dict[str, Any]:
    """Return what is held of one evaluation."""
    placement = evaluation.placement
    return {
        "feasible": evaluation.feasible,
        "time_per_batch_s": evaluation.time_per_batch_s,
        "mfu": evaluation.mfu,
        "area_mm2": evaluation.area_mm2,
        "energy_by_level_j": dict(evaluation.energy_by_level_j),
        "degrees": None
        if placement is None
        else [placement.pipeline, placement.data, placement.tensor, placement.rank_order],
        "time_breakdown_s": dict(evaluation.time_breakdown_s),
        "block_forward_s": evaluation.layers[1].forward_s,
        "block_backward_s": evaluation.layers[1].backward_s,
    }


def main() -> int:
    """Write the golden file."""
    cache: dict[str, Schedule] = {}
    rows = [{"case": case, "numbers": numbers(run_case(case, cache))} for case in cases()]
    new = {"cost_model_version": COST_MODEL_VERSION, "evaluations": rows}
    if PATH.exists():
        old = json.loads(PATH.read_text("utf-8"))
        same = old["evaluations"] == json.loads(json.dumps(rows))
        if not same and old["cost_model_version"] == COST_MODEL_VERSION:
            print("Numbers have changed: raise COST_MODEL_VERSION first.", file=sys.stderr)
            return 1
    PATH.write_text(json.dumps(new, indent=1) + "\n", "utf-8")
    print(f"Wrote {len(rows)} evaluations of version {COST_MODEL_VERSION}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
