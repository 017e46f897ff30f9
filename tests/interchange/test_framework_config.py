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
