"""Every key of a spec changes what is asked, and every axis changes the design of its points."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.economics.choices import Economics
from phaze_opt.spec.axis_names import ORDER, TRAINING_NAMES, kind_of
from phaze_opt.spec.designs import training_of
from phaze_opt.spec.freezing import check_names
from phaze_opt.spec.space import Space, all_points
from phaze_opt.spec.study_spec import (
    AreaSpec,
    ConstraintSpec,
    SearchSpec,
    StudySpec,
    WorkloadSpec,
    read_spec,
)

HEAD = {
    "name": '"every"',
    "model": '"bert-large"',
    "cluster": '"tpuv4-ici-flat"',
    "devices": "8",
    "global_batch": "64",
}
OTHER: dict[str, str] = {
    "model": '"gpt2-xl"',
    "cluster": '"flat-4GiB"',
    "devices": "16",
    "global_batch": "32",
    "optimizer": '"adam"',
    "sequence": "128",
    "tensor_parallel": "[1, 2]",
    "sequence_parallel": "true",
    "residency": "false",
    "placement": '"expert"',
    "baselines": '["tpuv4-lanes"]',
    "space": "{ num_tc = [1, 2] }",
    "area": '{ model = "chip" }',
    "search": "{ trials = 7 }",
    "constraints": "{ max_power_w = 300.0 }",
    "objectives": '["tokens"]',
    "aggregate": '"minimum"',
    "relative_to": '"tpuv4-lanes"',
    "attention": '"flash"',
    "microbatch": "2",
    "recompute": '"full"',
    "zero": "1",
    "pipeline_schedule": '"gpipe"',
    "interleave": "2",
    "overlap": '"none"',
    "fused_optimizer": "false",
    "recompute_early_stop": "true",
    "gather_copies": "true",
    "launch": '"eager"',
    "gradient_dtype": '"bf16"',
    "expert_parallel": "2",
    "expert_tensor_parallel": "1",
    "expert_capacity": "1.25",
    "dispatcher": '"deepep"',
    "dispatch_precision": '"fp8"',
    "expert_imbalance": "1.5",
    "precision": '"fp8"',
    "attention_precision": '"fp8"',
    "fp8_primary_weights": "true",
    "fp8_param_gather": "true",
    "accumulation_dtype": '"bf16"',
    "context_parallel": "2",
    "frozen": '["embedding"]',
    "lora_rank": "8",
    "lora_targets": '["linear_qkv"]',
    "context_kind": '"a2a"',
    "recompute_parts": '"core_attn"',
    "fused_accumulation": "true",
    "bf16_layers_at_start": "1",
    "bf16_layers_at_end": "2",
    "fp8_scaling": '"delayed"',
    "fp8_transposes": "true",
    "linear_precisions": '"linear_qkv=bf16"',
    "offload_parts": '"layer"',
    "offload_share": "0.5",
    "offload_optimizer": "0.5",
    "rank_order": '"solve"',
    "economics": "{ margin = 7.0 }",
}
_FP8 = {"optimizer": '"adam"', "precision": '"fp8"'}
NEEDS: dict[str, dict[str, str]] = {
    "fp8_primary_weights": _FP8,
    "fp8_param_gather": _FP8,
    "fp8_scaling": _FP8,
    "linear_precisions": _FP8,
    "dispatch_precision": _FP8,
    "offload_optimizer": {"optimizer": '"adam"'},
    "lora_targets": {"lora_rank": "8"},
}
"""Keys that stand only beside others."""
INNER: dict[type, tuple[str, dict[str, str]]] = {
    AreaSpec: (
        "[area]",
        {
            "max_of": '"tpuv4-lanes"',
            "max_mm2": "99.5",
            "min_share": "0.3",
            "model": '"chip"',
            "links": 'true\nmodel = "chip"',  # no other model has links
        },
    ),
    ConstraintSpec: (
        "[constraints]",
        {
            "max_power_w": "300.0",
            "max_hbm_gib": "64",
            "max_devices": "4",
            "max_time_per_batch_s": "2.5",
            "min_memory_margin": "0.1",
            "max_power_w_rack": '20e3\n[area]\nmodel = "chip"',
            "max_cost_usd": '1e6\n[area]\nmodel = "chip"',
            "max_carbon_kg": '1e5\n[area]\nmodel = "chip"',
        },
    ),
    Economics: (
        "[economics]",
        {
            "grid": '"europe"',
            "grid_g_per_kwh": "100.0",
            "energy_usd_per_kwh": "0.2",
            "pue": "1.1",
            "lifetime_years": "4.0",
            "margin": "7.0",
            "volume": "1e5",
            "host_usd": "2000.0",
            "network_usd": "1000.0",
            "network": '"levels"',
            "devices_per_rack": "72",
        },
    ),
    SearchSpec: (
        "[search]",
        {
            "sampler": '"random"',
            "trials": "7",
            "seed": "3",
            "options": '{ n_ei_candidates = 9 }\nsampler = "tpe"',
        },
    ),
}
WORKLOAD: dict[str, str] = {
    "model": '"opt-350m"',
    "name": '"other"',
    "sequence": "256",
    "attention": '"flash"',
    "tensor_parallel": '"all"',
    "global_batch": "32",
    "weight": "2.0",
}
AXES: dict[str, list[Any]] = {
    "cluster": ["tpuv4-ici-flat", "flat-4GiB"],
    "devices": [8, 16],
    "clock_ghz": [0.9, 1.0],
    "clock_hz": [0.9e9, 1e9],
    "peak_tflops": [200, 250],
    "pe_x": [64, 128],
    "pe_y": [64, 128],
    "l2_tc_kib": [256, 512],
    "l2_vc_kib": [16, 64],
    "l2_tc_bytes": [2**18, 2**19],
    "l2_vc_bytes": [2**14, 2**16],
    "glb_bytes": [2**24, 2**25],
    "glb_bytes_per_cycle": [4096.0, 8192.0],
    "hbm_bytes": [2**34, 2**35],
    "hbm_bytes_per_s": [1e12, 2e12],
    "hbm_gb_per_s": [1000, 2000],
    "global_batch": [32, 64],
    "microbatch": [1, 2],
    "recompute": ["none", "full"],
    "optimizer": ["sgd", "adam"],
    "sequence_parallel": [False, True],
    "zero": [0, 1],
    "pipeline_schedule": ["1f1b", "zb-1p"],
    "interleave": [1, 2],
    "overlap": ["none", "all"],
    "fused_optimizer": [True, False],
    "recompute_early_stop": [False, True],
    "gather_copies": [False, True],
    "launch": ["graphs", "eager"],
    "gradient_dtype": ["fp32", "bf16"],
    "expert_parallel": [1, 2],
    "expert_tensor_parallel": [0, 1],
    "expert_capacity": [0.0, 1.25],
    "dispatcher": ["nccl", "ideal"],
    "dispatch_precision": ["bf16", "fp8"],
    "expert_imbalance": [1.0, 1.5],
    "precision": ["bf16", "fp8"],
    "attention_precision": ["bf16", "fp8"],
    "fp8_primary_weights": [False, True],
    "fp8_param_gather": [False, True],
    "accumulation_dtype": ["fp32", "bf16"],
    "context_parallel": [1, 2],
    "context_kind": ["ring", "gather"],
    "recompute_parts": ["", "mlp"],
    "fused_accumulation": [False, True],
    "bf16_layers_at_start": [0, 1],
    "bf16_layers_at_end": [0, 2],
    "fp8_scaling": ["current", "delayed"],
    "fp8_transposes": [False, True],
    "linear_precisions": ["", "linear_fc1=bf16,linear_fc2=bf16"],
    "offload_parts": ["", "layer"],
    "offload_share": [0.5, 1.0],
    "offload_optimizer": [0.5, 1.0],
    "rank_order": ["two", "solve"],
    "fp8_ratio": [2.0, 1.0],
    "fp4_ratio": [4.0, 2.0],
    "int8_ratio": [2.0, 1.0],
    "residency": [True, False],
    "attention": ["eager", "flash"],
    "network.0.group_size": [8, 16],
    "network.0.topology": ["switch", "ring"],
}


def written(folder: Path, keys: dict[str, str], tail: str = "") -> StudySpec:
    """Write and read a study file."""
    path = folder / "study.toml"
    lines = [f"{key} = {value}" for key, value in keys.items()]
    path.write_text("\n".join([*lines, tail]) + "\n")
    return read_spec(path)


def test_every_key_is_in_these_tables() -> None:
    """A new key of a spec is not forgotten here."""
    keys = {field.name for field in dataclasses.fields(StudySpec)}
    assert keys == OTHER.keys() | {"name", "workloads"}
    for kind, (_, table) in INNER.items():
        assert {field.name for field in dataclasses.fields(kind)} == table.keys()
    assert {field.name for field in dataclasses.fields(WorkloadSpec)} == WORKLOAD.keys()


@pytest.mark.parametrize("key", OTHER)
def test_every_key_changes_the_question(key: str, tmp_path: Path) -> None:
    """Two studies that differ in one key are different studies."""
    head = {**HEAD, **NEEDS.get(key, {})}
    plain = written(tmp_path, head)
    changed = written(tmp_path, {**head, key: OTHER[key]})
    assert getattr(plain, key) != getattr(changed, key)
    assert check_names(plain).hash != check_names(changed).hash


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [(table, key, value) for table, keys in INNER.values() for key, value in keys.items()],
)
def test_every_key_of_a_table_changes_the_question(
    table: str, key: str, value: str, tmp_path: Path
) -> None:
    """So do the keys of its tables."""
    plain = written(tmp_path, HEAD)
    changed = written(tmp_path, HEAD, f"{table}\n{key} = {value}")
    assert check_names(plain).hash != check_names(changed).hash


@pytest.mark.parametrize("key", WORKLOAD)
def test_every_key_of_a_workload_changes_the_question(key: str, tmp_path: Path) -> None:
    """And those of a workload among several."""
    keys = {name: value for name, value in HEAD.items() if name != "model"}
    first = '[[workloads]]\nmodel = "bert-large"\n'
    table = {"model": '"gpt2-xl"'}
    plain = written(tmp_path, keys, first + "[[workloads]]\nmodel = 'gpt2-xl'")
    changed_table = {**table, key: WORKLOAD[key]}
    lines = "\n".join(f"{name} = {value}" for name, value in changed_table.items())
    changed = written(tmp_path, keys, f"{first}[[workloads]]\n{lines}")
    assert check_names(plain).hash != check_names(changed).hash


LEVELS = (
    *("network.0.bandwidth_gb_per_s", "network.0.launch_us", "network.0.links"),
    *("network.0.group_size", "network.0.topology"),
)
FREE = ("l2_bytes_per_cycle", "host_link_bytes_per_s", "host_link_gb_per_s")
SEARCHABLE = [name for name in (*ORDER, *LEVELS) if name not in FREE]
"""No area model charges for the bandwidth of private buffers and of the link to the host, which are
refused as axes."""


@pytest.mark.parametrize("name", SEARCHABLE)
def test_every_axis_changes_the_design(name: str) -> None:
    """The points of an axis differ in chip, network or options of the run, and in nothing else."""
    values = AXES.get(name, [2, 4])
    axes: dict[str, Any] = {name: values}
    space = Space("tpuv4-lanes", **axes)
    constraints = ConstraintSpec(max_power_w=1000.0)
    spec = StudySpec(
        "axes",
        "bert-large",
        "tpuv4-ici-flat",
        8,
        64,
        space=space,
        area=AreaSpec(model="chip"),
        constraints=constraints,
        **{key: json.loads(value) for key, value in NEEDS.get(name, {}).items()},
    )
    study = check_names(spec)
    first, second = (study.design(point) for point in all_points(space))
    differs = {
        "chip": first.accelerator != second.accelerator,
        "network": first.cluster != second.cluster,
        "training": first.options != second.options,
    }
    assert differs == {kind: kind == kind_of(name) for kind in differs}
    if name in TRAINING_NAMES and name != "attention":
        assert training_of(first.options, None) != training_of(second.options, None)
