"""Configurations of training frameworks, read as runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.interchange.framework_config import import_config
from phaze_opt.interchange.megatron_arguments import read_megatron_arguments

SAMPLES = Path(__file__).parent.parent / "data" / "framework_configs"


def test_what_is_said_of_megatron() -> None:
    """Variables that a script sets are put in; what nobody knows is said, and the rest ignored."""
    found = import_config(SAMPLES / "megatron_gpt3.sh")
    assert found.row["devices"] == "128" and found.row["recompute"] == "selective"
    assert found.unknown == ("a-new-option",)
    assert {"lr", "master_addr"} <= set(found.ignored)
    assert found.missing == ("accelerator", "cluster")
    assert "ACCELERATOR" in found.command and "16x1x8" in found.command
    experts = import_config(SAMPLES / "megatron_experts.txt")
    assert experts.row["interleave"] == "4" and experts.row["precision"] == "fp8-block"
    assert experts.row["recompute_parts"] == "core_attn,moe_act"
    assert "4xDATAx1x8" in experts.command and "--devices DEVICES" in experts.command


@pytest.mark.parametrize(("devices", "stated"), [("", None), ("1", "1"), ("2", None), ("4", "4")])
def test_experts_are_split_over_the_tensor_parallel_group_unless_stated(
    tmp_path: Path, devices: str, stated: str | None
) -> None:
    """One device is another number than the group's; of a dense model nothing is stated."""
    split = f" --expert-tensor-parallel-size {devices}" if devices else ""
    lines = (SAMPLES / "megatron_experts.txt").read_text("utf-8")
    lines = lines.replace("tensor-model-parallel-size=1", f"tensor-model-parallel-size=2{split}")
    file = tmp_path / "a.txt"
    file.write_text(lines)
    assert import_config(file).row.get("expert_tensor_parallel") == stated
    file.write_text(lines.replace("--num-experts 8 ", ""))
    assert "expert_tensor_parallel" not in import_config(file).row


def test_what_is_said_of_torchtitan_and_maxtext() -> None:
    """Degrees, batch, recompute and bits of both."""
    titan = import_config(SAMPLES / "torchtitan_llama3_70b.toml").row
    assert (titan["model"], titan["data"], titan["tensor"]) == ("llama3-70b", "8", "8")
    assert (titan["zero"], titan["global_batch"], titan["precision"]) == ("3", "64", "fp8")
    maxtext = import_config(SAMPLES / "maxtext_llama2_7b.yml").row
    assert (maxtext["model"], maxtext["data"], maxtext["zero"]) == ("llama2-7b", "64", "3")
    assert (maxtext["global_batch"], maxtext["precision"]) == ("256", "int8")


MEGATRON = "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 128 "
TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\n'
MAXTEXT = "model_name: mixtral-8x7b\nper_device_batch_size: 2\nici_fsdp_parallelism: 8\n"


@pytest.mark.parametrize(
    ("name", "text", "stated"),
    [
        ("a.sh", MEGATRON + "--grad-reduce-in-bf16", {"accumulation_dtype": "bf16"}),
        ("a.sh", MEGATRON + "--main-grads-dtype bf16", {"accumulation_dtype": "bf16"}),
        (
            "a.sh",
            MEGATRON + "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            {"optimizer": "adam-bf16"},
        ),
        ("a.toml", TITAN + "data_parallel_shard_degree = 4\ntensor_parallel_degree = 2\n"
         "[experimental]\npipeline_parallel_degree = 2\n",
         {"data": "4", "tensor": "2", "pipeline": "2", "devices": "16", "zero": "2"}),
        ("a.toml", TITAN + "[parallelism]\ndata_parallel_shard_degree = 4\n"
         "data_parallel_replicate_degree = 2\ncontext_parallel_degree = 2\n",
         {"data": "8", "devices": "16", "zero": "3", "zero_group": "8"}),
        ("a.toml", TITAN + "[parallelism]\ndata_parallel_shard_degree = 4\n"
         "data_parallel_replicate_degree = 2\nexpert_parallel_degree = 4\n",
         {"data": "8", "zero": "3", "zero_group": "4", "expert_parallel": "4"}),
        ("a.sh", MEGATRON + "--use-distributed-optimizer --nnodes 2 --nproc_per_node 8 "
         "--num-distributed-optimizer-instances 2 --tensor-model-parallel-size 2",
         {"devices": "16", "zero": "1", "zero_group": "4"}),
        ("a.yml", MAXTEXT + "ici_expert_parallelism: 4\ndcn_data_parallelism: 2\n",
         {"data": "64", "zero": "3", "zero_group": "32", "expert_parallel": "4"}),
        ("a.toml", TITAN + 'mixed_precision_reduce = "bfloat16"\n', {"gradient_dtype": "bf16"}),
        ("a.yml", MAXTEXT + "ici_expert_parallelism: 4\n",
         {"data": "32", "devices": "32", "expert_parallel": "4", "global_batch": "64"}),
        ("a.yml", MAXTEXT + "ici_context_parallelism: 4\n",
         {"data": "8", "devices": "32", "microbatch": "8", "global_batch": "64"}),
        ("a.yml", MAXTEXT + "dcn_data_parallelism: 2\n",
         {"data": "16", "zero": "3", "zero_group": "8"}),
        ("a.yml", MAXTEXT + "ici_pipeline_parallelism: 2\nnum_pipeline_microbatches: 4\n",
         {"data": "8", "devices": "16", "microbatch": "1", "global_batch": "32"}),
        ("a.yml", MAXTEXT + "sparse_matmul: false\ncapacity_factor: 1.25\nopt_type: sgd\n",
         {"expert_capacity": "1.25", "optimizer": "sgd"}),
        ("a.yml", "per_device_batch_size: 2\n", {"zero": "3", "data": None, "devices": None}),
    ],
)  # fmt: skip
def test_what_is_stated(
    name: str, text: str, stated: dict[str, str | None], tmp_path: Path
) -> None:
    """What the program can express is in the row, by the name of this release or of another."""
    (tmp_path / name).write_text(text)
    row = import_config(tmp_path / name).row
    assert {column: row.get(column) for column in stated} == stated


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.sh", MEGATRON + "--qk-layernorm", "qk-layernorm"),
        ("a.sh", MEGATRON + "--untie-embeddings-and-output-weights", "untied from the head"),
        ("a.sh", MEGATRON + "--attention-dropout 0.1 --hidden-dropout 0", "hidden-dropout 0.0"),
        ("a.sh", MEGATRON + "--exp-avg-dtype fp8", "moments in fp32 and fp8"),
        (
            "a.sh",
            MEGATRON + "--use-distributed-optimizer --num-distributed-optimizer-instances 2",
            "all replicas share",
        ),
        ("a.sh", MEGATRON + "--main-params-dtype fp16", "main-params-dtype fp16"),
        ("a.toml", TITAN + "enable_cpu_offload = true\n", "enable_cpu_offload"),
        ("a.toml", TITAN + 'mixed_precision_param = "float32"\n', "mixed_precision_param float32"),
        ("a.toml", TITAN + '[activation_checkpoint]\nmode = "memory_budget"\n', "left open"),
        ("a.yml", MAXTEXT + "ici_tensor_parallelism: -1\n", "tensor of what is left"),
        ("a.yml", MAXTEXT + "attention: dot_product\n", "attention dot_product"),
        ("a.yml", MAXTEXT + "opt_type: muon\n", "opt_type muon"),
        ("a.yml", MAXTEXT + "sparse_matmul: false\n", "without a capacity_factor"),
    ],
)
def test_what_cannot_be_expressed_is_said(name: str, text: str, said: str, tmp_path: Path) -> None:
    """Nothing that would change the time is left out without a word."""
    (tmp_path / name).write_text(text)
    assert said in "; ".join(import_config(tmp_path / name).unknown)


def test_the_sequence_holds_for_a_model_that_is_given(tmp_path: Path) -> None:
    """As every framework states it."""
    (tmp_path / "a.sh").write_text(MEGATRON)
    found = import_config(tmp_path / "a.sh", model="llama3-8b")
    assert (found.row["model"], found.row["sequence"]) == ("llama3-8b", "128")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.py", "import os", "never executed"),
        ("a.sh", "echo hello", "no arguments of Megatron-LM"),
        ("a.sh", "--num-layers many", "'many'"),
        ("a.sh", "--num-layers 2 --tensor-model-parallel-size 0", "at least 1"),
        ("a.toml", "a = 1", "no section"),
        ("a.toml", '[training]\nseq_len = "x"\n', "whole number"),
        ("a.toml", "[training]\nseq_len = [1, 2]\n", "several values"),
        ("a.toml", "[training", "not valid TOML"),
        ("a.yml", "a: [", "no YAML"),
        ("a.yml", "- 1\n- 2\n", "no YAML of options"),
        ("a.yml", "a: 1", "none of MaxText's options"),
        ("a.yml", "per_device_batch_size: x", "must be a number"),
        ("a.yml", "per_device_batch_size: .nan", "must be positive"),
        ("a.yml", "a: !!python/object/apply:os.system ['true']", "no YAML"),
        ("a.yml", "a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\nmodel_name: [*b]\n", "several values"),
    ],
)
def test_what_cannot_be_read_is_refused(
    name: str, text: str, sentence: str, tmp_path: Path
) -> None:
    """One sentence, and nothing is executed."""
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        import_config(tmp_path / name)
    assert sentence in str(caught.value)
    assert str(caught.value).count(name) == 1


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever a script holds beside its arguments."""
    try:
        found = read_megatron_arguments(f"--num-layers 4\n{text}")
    except InputError:
        return
    assert found.framework == "megatron" and found.command
