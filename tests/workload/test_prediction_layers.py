"""Layers that predict tokens further ahead (multi-token prediction)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

import phaze_opt as po
from phaze_opt.errors import InputError, NotFoundError
from phaze_opt.workload.capture.transformer import count_parameters
from phaze_opt.workload.config import LLAMA, TransformerConfig
from phaze_opt.workload.graph import Layer, WorkloadVariant
from phaze_opt.workload.workload_file import write_workload
from phaze_opt.workload.zoo import load_workload, model_config
from tests.workload.blocks import captured_variant

SHAPES = {
    "dense": "llama:layers=2,hidden=64,heads=4,ffn=96,sequence=32,vocab=96",
    "moe": "moe:layers=2,hidden=64,heads=4,sequence=32,vocab=96,experts=8,top_k=2,expert_ffn=16",
}
shapes = pytest.mark.parametrize("shape", SHAPES)
TOKENS, HIDDEN, VOCABULARY = 2 * 32, 64, 96


def _capture(model: str, tensor_degree: int = 1, *, split: bool = False) -> WorkloadVariant:
    return captured_variant(model_config(model), tensor_degree, split=split)


def _layers(variant: WorkloadVariant) -> dict[str, Layer]:
    return {layer.name: layer for layer in variant.layers}


@shapes
@pytest.mark.parametrize("count", [1, 3])
def test_each_is_a_block_and_a_product_and_the_head_once_more(shape: str, count: int) -> None:
    """FLOPs and parameters are the closed form, the words and the projection count once."""
    plain, ahead = SHAPES[shape], f"{SHAPES[shape]},prediction_layers={count}"
    before, after = _layers(_capture(plain)), _layers(_capture(ahead))
    predict, block = after["prediction_layer"], before["block"]
    joined = 2 * TOKENS * 2 * HIDDEN * HIDDEN
    assert predict.forward.flops == block.forward.flops + joined
    assert predict.backward.flops == block.backward.flops + 2 * joined
    for ours, theirs in (("forward", 1), ("backward", 2)):
        one = theirs * 2 * TOKENS * HIDDEN * VOCABULARY
        assert getattr(before["head"], ours).flops == one
        assert getattr(after["head"], ours).flops == (1 + count) * one
    words = VOCABULARY * HIDDEN
    assert predict.tied_parameters == after["embedding"].tied_parameters == words
    assert predict.parameters == words + block.parameters + 2 * HIDDEN * HIDDEN + 3 * HIDDEN
    more = count_parameters(model_config(ahead)) - count_parameters(model_config(plain))
    assert more == count * (predict.parameters - words)
    assert after["block"] == block


@shapes
def test_edges_skip_to_the_head(shape: str) -> None:
    """The head reads the last block and every layer that predicts further ahead."""
    variant = _capture(f"{SHAPES[shape]},prediction_layers=2")
    stream = 2 * TOKENS * HIDDEN
    names = variant.names
    assert {(names[a], names[b]) for a, b, _ in variant.edges} == {
        ("embedding", "block.0"),
        ("block.0", "block.1"),
        ("block.1", "prediction_layer.0"),
        ("block.1", "head"),
        ("prediction_layer.0", "prediction_layer.1"),
        ("prediction_layer.0", "head"),
        ("prediction_layer.1", "head"),
    }
    assert {size for _, _, size in variant.edges} == {stream}


@shapes
@pytest.mark.parametrize("split", [False, True])
def test_shards_add_up(shape: str, split: bool) -> None:
    """Shares of the FLOPs add up; the joining product is whole on every device."""
    model = f"{SHAPES[shape]},prediction_layers=1"
    whole, shard = _layers(_capture(model)), _layers(_capture(model, 4, split=split))
    for name in ("prediction_layer", "head"):
        for pass_of in ("forward", "backward"):
            graphs = [getattr(each[name], pass_of) for each in (whole, shard)]
            assert graphs[0].flops == 4 * graphs[1].flops
    copied = 2 * HIDDEN * HIDDEN + 5 * HIDDEN + (HIDDEN * 8 if shape == "moe" else 0)
    ours, theirs = shard["prediction_layer"].parameters, whole["prediction_layer"].parameters
    assert 4 * (ours - copied) == theirs - copied


def test_deepseek_v3_has_those_of_its_release() -> None:
    """Its layer has 11.6 billion parameters, 14 with its copies of words and head (the release)."""
    config, hidden = model_config("deepseek-v3+mtp"), 7168
    attention = hidden * 1536 + 1536 + 1536 * 128 * 192 + hidden * 576 + 512 + 512 * 128 * 256
    attention += 128 * 128 * hidden
    experts = hidden * 256 + 257 * 3 * hidden * 2048
    more = count_parameters(config) - count_parameters(model_config("deepseek-v3"))
    assert more == attention + experts + 2 * hidden + 2 * hidden * hidden + 3 * hidden
    assert round((more + 2 * 129280 * hidden) / 1e9, 1) == 13.5
    assert replace(config, prediction_layers=UNSET) == model_config("deepseek-v3")


def test_names_say_whether_they_count(tmp_path: Path) -> None:
    """As many as a configuration states, one where it states none, and none unless asked for."""
    path = tmp_path / "config.json"
    small: dict[str, Any] = {"model_type": "llama", "num_hidden_layers": 2, "vocab_size": 96}
    for keys, count in (({}, 1), ({"num_nextn_predict_layers": 2}, 2), ({"num_mtp_modules": 3}, 3)):
        path.write_text(json.dumps({**small, **keys}))
        for name in (f"hf:{path}", f"hf:{tmp_path}", str(path)):
            assert model_config(name).prediction_layers is UNSET
            assert model_config(f"{name}+mtp").prediction_layers == count
    assert model_config(f"{SHAPES['dense']}+mtp").prediction_layers == 1
    assert model_config(f"{SHAPES['dense']},prediction_layers=2+mtp").prediction_layers == 2


def test_where_none_can_be_added(tmp_path: Path) -> None:
    """A captured workload has its layers; learned positions and no layers are refused."""
    captured = tmp_path / "captured.json"
    write_workload(load_workload(SHAPES["dense"]), captured)
    with pytest.raises(InputError, match="captured workload, to which"):
        load_workload(f"{captured}+mtp")
    with pytest.raises(NotFoundError):
        load_workload(f"{tmp_path / 'none.json'}+mtp")
    with pytest.raises(InputError, match="need rotary positions"):
        load_workload("gpt2-xl+mtp")
    with pytest.raises(InputError, match="prediction_layers is 0"):
        TransformerConfig(1, 64, 4, 8, 9, prediction_layers=0, **LLAMA)


def test_a_pipeline_of_two_stages_takes_longer_for_them() -> None:
    """Edges that skip to the head are messages between stages."""
    times = []
    for model in (SHAPES["dense"], f"{SHAPES['dense']}+mtp"):
        evaluation = po.evaluate(
            load_workload(model),
            po.load_accelerator("tpuv4-lanes"),
            po.load_cluster("flat-4GiB", devices=2),
            po.Training(global_batch=4, microbatch=1),
            placement=(2, 1, 1),
        )
        assert evaluation.feasible
        times.append(evaluation.time_per_batch_s or 0.0)
    assert times[0] < times[1]
