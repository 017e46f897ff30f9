"""Fifty evaluations whose numbers may change only together with ``COST_MODEL_VERSION``.

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
from phaze_opt.network.cluster import load_cluster
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload

PATH = Path(__file__).parent / "data" / "golden_evaluations.json"

_CHIPS: list[tuple[str, dict[str, str]]] = [
    ("tpuv4-phaze", {}),
    ("tpuv4-lanes", {}),
    ("tpuv4-lanes", {"num_tc": "32", "pe_x": "64", "pe_y": "64", "glb_mib": "32"}),
    ("tpuv4-phaze", {"num_tc": "2", "num_vc": "16", "pe_x": "256", "hbm_gib": "80"}),
    ("a100-80", {}),
]
_RUNS: list[dict[str, Any]] = [
    {"model": "bert-large", "cluster": "tpuv4-ici-flat", "devices": 1024, "global_batch": 4096},
    {"model": "bert-large", "cluster": "flat-4GiB", "devices": 64, "global_batch": 256},
    {"model": "gpt2-xl", "cluster": "tpuv4-ici-flat", "devices": 256, "global_batch": 512},
]
_OPTIONS: list[dict[str, Any]] = [
    {"microbatch": 1, "recompute": "none", "optimizer": "sgd", "placement": "solve"},
    {"microbatch": 2, "recompute": "full", "optimizer": "adam", "placement": "solve"},
    {"microbatch": 1, "recompute": "selective", "optimizer": "adam", "placement": (4, 8, 1)},
    {"microbatch": 2, "recompute": "none", "optimizer": "sgd", "placement": (2, 16, 1)},
]
_COUNT = 50


def cases() -> list[dict[str, Any]]:
    """Return the inputs of the golden evaluations."""
    combinations = itertools.product(_CHIPS, _RUNS, _OPTIONS)
    return [
        {"accelerator": chip, "set": changes, **run, **options}
        for (chip, changes), run, options in itertools.islice(combinations, _COUNT)
    ]


def run_case(case: dict[str, Any], cache: dict[str, Schedule]) -> Evaluation:
    """Evaluate one case."""
    placement = case["placement"]
    return evaluate(
        load_workload(case["model"], tensor_parallel=(1,), microbatch=(1, 2)),
        load_accelerator(case["accelerator"], **case["set"]),
        load_cluster(case["cluster"], case["devices"]),
        Training(case["global_batch"], case["microbatch"], case["recompute"], case["optimizer"]),
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
        "energy_j_per_batch": evaluation.energy_j_per_batch,
        "degrees": None
        if placement is None
        else [placement.pipeline, placement.data, placement.tensor],
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
