"""Small spaces of every kind, to be enumerated with and without bounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phaze_opt.economics.choices import Economics
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import AreaSpec, ConstraintSpec, StudySpec, WorkloadSpec
from phaze_opt.study.objective import Objective
from phaze_opt.study.study import Study, create_study
from phaze_opt.whole_space.engine import Engine

RUN: dict[str, Any] = {
    "cluster": "tpuv4-ici-flat",
    "devices": 16,
    "global_batch": 64,
    "baselines": (),  # which nothing here asks for, but where several workloads are compared
}
CASES: dict[str, dict[str, Any]] = {
    "paper": {
        "model": "bert-large",
        "attention": "eager",
        "residency": False,
        "overlap": "none",
        "tensor_parallel": (1, 2),
        "space": Space.phaze(
            num_tc=[4, 16],
            num_vc=4,
            pe_x=(64, 128),
            pe_y=128,
            glb_mib=[16, 64],
            hbm_gib=[2, 8],
            microbatch=[1, 4],
        ),
    },
    "experts": {
        "model": "bert-large",
        "attention": "eager",
        "placement": "expert",
        "overlap": "none",
        "tensor_parallel": (1, 2),
        "space": Space.phaze(
            num_tc=[4, 16],
            num_vc=4,
            pe_x=128,
            pe_y=[64, 128],
            glb_mib=[16, 64],
            hbm_gib=[2, 8],
            microbatch=[1, 4],
        ),
    },
    "today": {
        "model": "gpt2-xl",
        "attention": "flash",
        "optimizer": "adam",
        "space": Space(
            "tpuv4-lanes",
            num_tc=[4, 6],
            glb_mib=[16, 64],
            hbm_gb_per_s=[800, 1200],
            hbm_gib=[16, 32],
            recompute=["none", "selective"],
            zero={"solve": [0, 3]},
        ),
        "area": AreaSpec(model="chip"),
    },
    "gpus": {
        "model": "bert-large",
        "attention": "flash",
        "optimizer": "adam",
        "cluster": "dgx-h100",
        "tensor_parallel": (1, 2),
        "overlap": "all",
        "launch": "eager",
        "space": Space("h100", num_tc=[66, 132], glb_mib=[25, 50], microbatch=(1, 4)),
        "baselines": ("h100",),
    },
    "split-backward": {
        "model": "gpt:layers=12,hidden=512,heads=8,sequence=256,vocab=4000,attention=flash",
        "optimizer": "adam",
        "cluster": "flat-4GiB",
        "global_batch": 128,
        "space": Space(
            "tpuv4-lanes",
            num_tc=[1, 16],
            glb_mib=[16, 64],
            hbm_gib=[0.5, 4],
            microbatch=[1, 4],
            zero=[0, 1],
            pipeline_schedule={"solve": ["1f1b", "zb-1p", "zb-v"]},
        ),
    },
    "mixture": {
        "model": "moe:layers=4,hidden=512,heads=8,sequence=256,vocab=8000,experts=16,top_k=2,"
        "expert_ffn=512,shared=1,ffn=1024,dense_layers=1,q_rank=192,kv_rank=128,nope_dim=64,"
        "rope_dim=32,v_dim=64",
        "optimizer": "adam",
        "tensor_parallel": (1, 2),
        "overlap": "all",
        "space": Space(
            "tpuv4-lanes",
            num_tc=[2, 8],
            pe_x=[64, 128],
            glb_mib=16,
            hbm_gib=[0.5, 8],
            recompute=["none", "full"],
            zero=[0, 1],
        ),
    },
    "shared-experts": {
        "model": "moe:layers=4,hidden=512,heads=8,sequence=256,vocab=8000,experts=16,top_k=2,"
        "expert_ffn=512",
        "optimizer": "adam",
        "cluster": "dgx-h100",
        "global_batch": 512,
        "expert_imbalance": 1.3,
        "fused_accumulation": True,
        "bf16_layers_at_start": 1,
        "tensor_parallel": (1, 2),
        "overlap": "experts",
        "space": Space(
            "tpuv4-lanes",
            fp8_ratio=2.0,
            num_tc=[2, 8],
            glb_mib=16,
            hbm_gib=[0.5, 8],
            zero=[0, 3],
            expert_parallel={"solve": [1, 2, 8]},
            dispatcher=["nccl", "deepep"],
            precision=["bf16", "fp8"],
        ),
    },
    "folded-experts": {
        "model": "moe:layers=4,hidden=512,heads=8,sequence=256,vocab=8000,experts=16,top_k=2,"
        "expert_ffn=512",
        "optimizer": "adam",
        "cluster": "dgx-h100",
        "global_batch": 256,
        "expert_capacity": 1.5,
        "sequence_parallel": True,
        "tensor_parallel": (1, 2),
        "space": Space(
            "tpuv4-lanes",
            num_tc=[2, 8],
            hbm_gib=[0.25, 8],
            zero=[0, 3],
            expert_parallel={"solve": [2, 8]},
            expert_tensor_parallel={"solve": [0, 1, 2]},
        ),
    },
    "hybrid": {
        "model": str(Path(__file__).parents[1] / "data" / "hybrids" / "nemotron_h.json"),
        "optimizer": "adam",
        "cluster": "dgx-h100",
        "tensor_parallel": (1, 2),
        "space": Space(
            "tpuv4-lanes",
            num_tc=[2, 8],
            glb_mib=[16, 64],
            hbm_gib=[0.5, 4],
            zero=[0, 1],
            expert_parallel={"solve": [1, 8]},
            recompute=["none", "full"],
        ),
    },
    "contexts": {
        "model": "llama:layers=4,hidden=512,heads=8,kv_heads=4,ffn=1408,sequence=4096,vocab=8000",
        "optimizer": "adam",
        "cluster": "dgx-h100",
        "global_batch": 8,
        "tensor_parallel": (1, 2),
        "space": Space(
            "tpuv4-lanes",
            num_tc=[2, 8],
            glb_mib=16,
            hbm_gib=[0.5, 4],
            zero=[0, 1],
            context_parallel={"solve": [1, 2, 8]},
            context_kind=["ring", "a2a", "gather"],
            recompute_parts=["", "layernorm,mlp"],
        ),
    },
    "offloads": {
        "model": "llama:layers=4,hidden=512,heads=8,kv_heads=4,ffn=1408,sequence=1024,vocab=8000",
        "optimizer": "adam",
        "cluster": "dgx-h100",
        "global_batch": 16,
        "tensor_parallel": (1, 2),
        "space": Space(
            "tpuv4-lanes",
            host_link_gb_per_s=16,
            num_tc=[2, 8],
            hbm_gib=[0.25, 4],
            recompute_parts=["", "minimal_offloaded"],
            offload_parts=["", "layer"],
            offload_optimizer=[0.0, 1.0],
        ),
    },
    "adapters": {
        "model": "llama:layers=6,hidden=512,heads=8,kv_heads=4,ffn=1408,sequence=2048,vocab=8000",
        "optimizer": "adam",
        "cluster": "dgx-h100",
        "lora_rank": 8,
        "lora_targets": ("linear_qkv", "linear_fc2"),
        "fp8_primary_weights": True,
        "precision": "fp8",
        "fused_accumulation": True,
        "tensor_parallel": (1, 2),
        "space": Space(
            "tpuv4-lanes",
            fp8_ratio=2.0,
            num_tc=[2, 8],
            glb_mib=[16, 64],
            hbm_gib=[0.25, 2],
            recompute=["none", "selective", "full"],
            zero={"solve": [0, 1]},
            launch=["graphs", "eager"],
        ),
    },
    "precisions": {
        "model": "bert-large",
        "attention": "flash",
        "optimizer": "adam",
        "tensor_parallel": (1, 2),
        "overlap": "all",
        "space": Space(
            "tpuv4-lanes",
            fp8_ratio=2.0,
            fp4_ratio=4.0,
            num_tc=[2, 8],
            glb_mib=[16, 64],
            hbm_gib=[2, 8],
            recompute=["none", "full"],
            precision=["bf16", "fp8", "mxfp8", "nvfp4"],
            linear_precisions={"solve": ["", "linear_fc1=mxfp8,linear_fc2=mxfp8"]},
        ),
    },
    "narrow-arrays": {
        "model": "bert-large",
        "attention": "flash",
        "optimizer": "adam",
        "tensor_parallel": (1,),
        "area": AreaSpec(max_mm2=420.0, model="chip"),
        "space": Space(
            "tpuv4-lanes",
            fp8_ratio=[0.5, 1.0, 2.0],
            num_tc=[2, 8],
            pe_x=[64, 128],
            num_vc=[2, 4],
            glb_mib=[16, 64],
            precision=["bf16", "fp8"],
            fp8_primary_weights={"solve": [False, True]},
        ),
    },
    # The network is searched with the chip, whose area has the PHYs of its links.
    "networks": {
        "model": "llama:layers=4,hidden=1024,heads=8,kv_heads=4,ffn=2816,sequence=1024,vocab=8000",
        "optimizer": "adam",
        "cluster": "dgx-h100",
        "global_batch": 256,
        "tensor_parallel": (1, 2),
        "area": AreaSpec(max_mm2=450.0, model="chip", links=True),
        "space": Space(
            "tpuv4-lanes",
            num_tc=[2, 8],
            zero=1,
            network={
                "0": {
                    "topology": ["switch", "torus-2d"],
                    "links": [6, 36],
                    "bandwidth_gb_per_s": "25 * network.0.links",
                },
                "1": {"topology": "fat-tree", "taper": [1.0, 4.0], "leaf_devices": 4},
            },
        ),
    },
    "rails": {
        "model": "llama:layers=4,hidden=1024,heads=8,kv_heads=4,ffn=2816,sequence=1024,vocab=8000",
        "cluster": "dgx-h100",
        "tensor_parallel": (1, 2),
        "space": Space(
            "tpuv4-lanes",
            num_tc=[2, 8],
            zero={"solve": [0, 3]},
            network={
                "0": {"group_size": [4, 8]},
                "1": {"topology": ["switch", "rail"], "taper": 4.0, "leaf_devices": 1},
            },
        ),
    },
    # Chips without HBM, which hold all in a global buffer whose size then counts without residency
    # too, beside chips with one.
    "no-hbm": {
        "model": "gpt:layers=3,hidden=512,heads=8,sequence=128,vocab=1024",
        "optimizer": "adam",
        "residency": False,
        "tensor_parallel": (1, 2),
        "area": AreaSpec(model="chip"),
        "space": Space(
            "tpuv4-lanes",
            num_tc=[2, 8],
            glb_mib=[16, 24, 64],
            hbm_gb_per_s=[300, 1200],
            hbm_gib=[0, 0.5],
            zero={"solve": [0, 1]},
        ),
        "constraints": ConstraintSpec(max_power_w=60.0, min_memory_margin=0.1),
    },
    # The fastest take a small slice: on all of it they are below their bounds by more than bounds
    # are above the truth.
    "torus": {
        "model": "bert-large",
        "attention": "eager",
        "optimizer": "adam",
        "cluster": "tpuv4-torus",
        "devices": 128,
        "global_batch": 8,
        "tensor_parallel": (1,),
        "space": Space(
            "tpuv4-lanes", num_tc=[2, 4], glb_mib=[16, 64], hbm_gib=[16, 32], microbatch=[2, 4]
        ),
    },
    "several": {
        "model": None,
        "workloads": (WorkloadSpec("bert-large"), WorkloadSpec("opt-350m", weight=2.0)),
        "space": Space(
            "tpuv4-lanes", num_tc=[2, 4, 8], glb_mib=[32, 64], microbatch={"solve": [1, 2]}
        ),
        "objectives": ("throughput_per_area",),
        "baselines": ("tpuv4-phaze",),
    },
    # Most chips take too much power, some of them even at the slowest placement.
    "cool": {
        "model": "bert-large",
        "attention": "eager",
        "tensor_parallel": (1, 2),
        "space": Space(
            "tpuv4-lanes",
            num_tc=[1, 2, 4],
            num_vc=[2, 4],
            glb_mib=[16, 64],
            hbm_gb_per_s=[300, 1200],
            microbatch=[1, 4],
        ),
        "area": AreaSpec(model="chip"),
        "constraints": ConstraintSpec(max_power_w=60.0),
    },
    "frugal": {
        "model": "opt-350m",
        "optimizer": "adam",
        "space": Space(
            "tpuv4-lanes",
            num_tc=[1, 4],
            pe_x=[64, 128],
            pe_y=[64, 256],
            devices=[8, 16],
            fused_accumulation=[False, True],
        ),
        "objectives": ("energy_per_sample",),
        "constraints": ConstraintSpec(max_time_per_batch_s=1.5, max_devices=12),
    },
    # Chips of one die and of several, of which more HBM is dearer.
    "dollars": {
        "model": "opt-350m",
        "optimizer": "adam",
        "space": Space(
            "tpuv4",
            num_tc=[2, 8, 24],
            pe_vc=[128, 1024],
            hbm_gib=[16, 32, 96],
            microbatch={"solve": [1, 4]},
        ),
        "area": AreaSpec(model="chip", max_mm2=1500.0),
        "objectives": ("throughput_per_dollar",),
        "economics": Economics(grid="europe", margin=5.0, volume=1e5, host_usd=2000.0),
    },
    # What the links of a searched network cost decides which is best.
    "dollars-of-networks": {
        "model": "llama:layers=4,hidden=1024,heads=8,kv_heads=4,ffn=2816,sequence=1024,vocab=8000",
        "optimizer": "adam",
        "cluster": "dgx-h100",
        "global_batch": 256,
        "tensor_parallel": (1, 2),
        "area": AreaSpec(model="chip"),
        "objectives": ("throughput_per_dollar",),
        "constraints": ConstraintSpec(max_cost_usd=270_000.0, max_power_w_rack=16_000.0),
        "economics": Economics(network="levels"),
        "space": Space(
            "tpuv4-lanes",
            num_tc=[1, 2, 8],
            glb_mib=[16, 64],
            zero=1,
            network={
                "0": {
                    "group_size": [4, 16],
                    "links": [6, 36],
                    "bandwidth_gb_per_s": "25 * network.0.links",
                },
                "1": {"topology": ["fat-tree", "rail"], "taper": [1.0, 4.0], "leaf_devices": 2},
            },
        ),
    },
    "watts": {
        "model": "opt-350m",
        "optimizer": "adam",
        "space": Space(
            "h100", num_tc=[16, 66, 132], glb_mib=[16, 64], hbm_gib=[16, 80], devices=[8, 16]
        ),
        "area": AreaSpec(model="chip", max_mm2=1500.0),
        "objectives": ("throughput_per_watt",),
        "constraints": ConstraintSpec(max_carbon_kg=160_000.0),
    },
    # Some chips cost too much however slow they are, others only while they are fast.
    "budget": {
        "model": "bert-large",
        "attention": "eager",
        "tensor_parallel": (1, 2),
        "space": Space(
            "tpuv4-lanes",
            num_tc=[1, 2, 8],
            num_vc=[2, 4],
            glb_mib=[16, 64],
            hbm_gib=[16, 32],
            devices=[8, 16],
        ),
        "area": AreaSpec(model="chip"),
        "constraints": ConstraintSpec(
            max_cost_usd=290_000.0, max_carbon_kg=1e6, max_power_w_rack=17_000.0
        ),
    },
    "small": {
        "model": None,
        "workloads": (WorkloadSpec("bert-large"), WorkloadSpec("opt-350m", weight=2.0)),
        "overlap": "all",
        "space": Space(
            "tpuv4-lanes", num_tc=[1, 2, 4], pe_x=[64, 128], microbatch={"solve": [1, 2]}
        ),
        "objectives": ("area",),
        "constraints": ConstraintSpec(max_time_per_batch_s=0.9, max_power_w=300.0),
        "baselines": ("tpuv4-lanes",),
    },
}


class Studies:
    """Studies of specs by name, each of which is made when it is first asked for."""

    def __init__(self, folder: Path, specs: Mapping[str, StudySpec]) -> None:
        self._folder, self._specs = folder, specs
        self._made: dict[str, Study] = {}

    @property
    def names(self) -> list[str]:
        """The names in order."""
        return sorted(self._specs)

    def __getitem__(self, name: str) -> Study:
        if name not in self._made:
            url = f"sqlite:///{self._folder / name}.db"
            self._made[name] = create_study(self._specs[name], url)
        return self._made[name]


def case_spec(name: str) -> StudySpec:
    """Return the spec of a case."""
    return StudySpec(**({"name": name} | RUN | CASES[name]))


def engine_of(study: Study) -> Engine:
    """Return what bounds and evaluates the points of a study."""
    return Engine(study, study.evaluator)


def objective_of(study: Study) -> Objective:
    """Return the objective of a study, with the caches of its database."""
    return engine_of(study).objective
