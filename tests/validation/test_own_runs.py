"""Measured runs and operators of a user."""

from __future__ import annotations

from pathlib import Path

import pytest

from phaze_opt.codec import data_rows
from phaze_opt.errors import InputError
from phaze_opt.validation import own_runs
from phaze_opt.validation.own_operators import validate_own_operators
from phaze_opt.validation.own_runs import framework_names, validate_own_runs
from phaze_opt.validation.runs import validate_run_times
from phaze_opt.validation.stated_run import evaluate_stated_run

SMALL = "gpt:layers=4,hidden=256,heads=4,sequence=128,vocab=1000"
STATED = {
    **{"model": f'"{SMALL}"', "accelerator": "h100", "cluster": "dgx-h100", "devices": "16"},
    **{"tensor": "2", "pipeline": "1", "global_batch": "64", "microbatch": "2"},
    **{"recompute": "none", "software": "megatron", "measured_s": "0.01"},
}


def written(path: Path, *rows: dict[str, str]) -> Path:
    """Write rows of the same columns."""
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_row_is_predicted_as_a_built_in_one(tmp_path: Path) -> None:
    """The same options give the same seconds, memory and parts."""
    built_in = next(table for table in validate_run_times() if table.name == "torchtitan")
    stated = next(
        row for row in data_rows("validation", "training.csv") if row["table"] == "torchtitan"
    )
    renamed = {
        {"microbatches": "microbatch", "table": "note"}.get(name, name): f'"{text}"'
        for name, text in stated.items()
        if name != "attention"
    }
    time, memory = validate_own_runs(written(tmp_path / "runs.csv", renamed))
    (row,) = time.rows
    assert (row.measured, row.predicted) == (built_in.rows[0].measured, built_in.rows[0].predicted)
    assert row.parts_s == built_in.rows[0].parts_s and row.closest == ""
    assert row.predicted_range and row.predicted_range[0] <= row.predicted <= row.predicted_range[1]
    assert (memory.name, memory.unit) == ("runs.csv memory", "B")


def test_adapters_are_stated_as_in_the_command(tmp_path: Path) -> None:
    """Their layers stand with commas, or with spaces."""
    adapters = [{**STATED, "lora_rank": "4", "lora_targets": f'"linear_qkv{between}linear_fc2"'}
                for between in (",", ", ", " ")]  # fmt: skip
    (table,) = validate_own_runs(written(tmp_path / "runs.csv", *adapters))
    assert len({row.predicted for row in table.rows}) == 1


def test_what_is_open_is_tried(tmp_path: Path) -> None:
    """The fastest is the prediction; the range holds every choice that could be stated."""
    closed = [
        {**STATED, "microbatch": size, "recompute": recompute}
        for size in ("1", "2", "4", "8")
        for recompute in ("none", "selective", "full")
    ]
    (known,) = validate_own_runs(written(tmp_path / "closed.csv", *closed))
    (table,) = validate_own_runs(
        written(tmp_path / "open.csv", {**STATED, "microbatch": "", "recompute": ""})
    )
    (row,) = table.rows
    assert row.predicted == min(each.predicted for each in known.rows)
    spans = [each.predicted_range for each in known.rows]
    assert row.predicted_range == (
        min(span[0] for span in spans if span),
        max(span[1] for span in spans if span),
    )
    assert "microbatch" in row.assumed and "recompute" in row.assumed and row.closest


def test_parts_that_run_again_are_selective_recompute(tmp_path: Path) -> None:
    """As on the command line, where nothing else is said."""
    parts = {**STATED, "recompute_parts": "mlp"}
    tables = [
        validate_own_runs(written(tmp_path / "a.csv", {**parts, "recompute": recompute}))
        for recompute in ("", "selective")
    ]
    assert tables[0][0].rows == tables[1][0].rows


@pytest.mark.parametrize(
    ("column", "value", "open_column", "choices"),
    [
        ("offload_parts", "attn_norm", "recompute", "none full"),
        ("expert_capacity", "1.0", "dispatcher", "nccl"),
    ],
)
def test_only_what_goes_together_is_tried(
    column: str, value: str, open_column: str, choices: str, tmp_path: Path
) -> None:
    """Of what is open, choices that a stated option excludes."""
    experts = "moe:layers=2,hidden=256,heads=4,sequence=128,vocab=1000,experts=8,top_k=2,"
    row = {**STATED, "model": f'"{experts}expert_ffn=128"', "expert_parallel": "4"}
    row = {**row, "dispatcher": "nccl", column: value, open_column: ""}
    (table,) = validate_own_runs(written(tmp_path / "a.csv", row))
    alone = []
    for choice in choices.split():
        (each,) = validate_own_runs(written(tmp_path / "b.csv", {**row, open_column: choice}))
        alone.append(each.rows[0].predicted)
    assert table.rows[0].predicted == min(alone)


def test_many_rows_are_predicted_by_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows in the same order; the first that is refused is named by its line."""
    rows = [{**STATED, "global_batch": str(64 * k)} for k in (1, 2, 3)]
    alone = validate_own_runs(written(tmp_path / "a.csv", *rows))
    monkeypatch.setattr(own_runs, "MANY_ROWS", 3)
    assert validate_own_runs(tmp_path / "a.csv") == alone
    rows[1] = {**rows[1], "zero": "7"}
    with pytest.raises(InputError, match=r"Line 3 of .*: zero is 7"):
        validate_own_runs(written(tmp_path / "a.csv", *({"zero": "0", **row} for row in rows)))


def test_rates_mean_times(tmp_path: Path) -> None:
    """A run that is exactly as predicted is so by whatever it is stated."""
    run = evaluate_stated_run({**STATED, "model": SMALL, "data": "8", "microbatches": "2"})
    tokens_per_s = 64 * 128 / run.time_s
    rates = {
        "samples_per_s": 64 / run.time_s,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_device": tokens_per_s / 16,
        "tflops_per_device": run.evaluation.tflops_per_device,
    }
    bare = {name: text for name, text in STATED.items() if name != "measured_s"}
    for name, value in rates.items():
        (table,) = validate_own_runs(written(tmp_path / "a.csv", {**bare, name: repr(value)}))
        assert abs(table.rows[0].error) < 1e-12, name


def test_names_of_frameworks_are_known(tmp_path: Path) -> None:
    """Every name of a framework is read as ours; what no run states is refused by name."""
    assert set(framework_names()) & {"tensor_model_parallel_size", "local_batch_size"}
    plain = validate_own_runs(written(tmp_path / "a.csv", STATED))
    other = {
        {"tensor": "--tensor-model-parallel-size", "microbatch": "mbs", "devices": "gpus"}.get(
            name, name
        ): text
        for name, text in STATED.items()
    }
    assert validate_own_runs(written(tmp_path / "b.csv", other))[0].rows == plain[0].rows


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"measured_s": ""}, "nothing is stated"),
        ({"tokens_per_s": "3"}, "measured_s and tokens_per_s is stated"),
        ({"measured_s": "-1"}, "positive"),
        ({"measured_s": "nan"}, "positive"),
        ({"devices": ""}, "data and devices are empty"),
        ({"devices": "7"}, "take 2 each"),
        ({"data": "3"}, "another number"),
        ({"software": ""}, "software and optimizer are empty"),
        ({"software": "megatorn"}, "megatron"),
        ({"recompute": "some"}, "recompute is 'some'"),
        ({"global_batch": "4"}, "needs a global batch"),
        ({"pipline": "2"}, "pipeline"),
        ({"zero": "yes"}, "zero is 'yes'"),
        ({"mbs": "2"}, "stated twice"),
        ({"measured_memory_bytes": "1", "measured_memory_gib": "1"}, "a run has one of them"),
        ({"model": ""}, "model is empty"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, str], sentence: str, tmp_path: Path) -> None:
    """One sentence names the line."""
    with pytest.raises(InputError, match="Line 2 of") as caught:
        validate_own_runs(written(tmp_path / "runs.csv", {**STATED, **changes}))
    assert sentence in str(caught.value)


def test_files_without_rows_are_refused(tmp_path: Path) -> None:
    """There is nothing to predict."""
    (tmp_path / "a.csv").write_text("model\n")
    for validate in (validate_own_runs, validate_own_operators):
        with pytest.raises(InputError):
            validate(tmp_path / "a.csv")


@pytest.mark.parametrize(
    "text",
    [
        "accelerator,m,n,k,latency_s\nh100,4096,12288,10240,0.001191496\n",
        "accelerator,op,rows,columns,latency_s\na100-80,softmax,4096,1024,1.2e-5\n",
        "accelerator,batch,sequence,heads,kv_heads,head_dim,latency_s,backward\n"
        "h100,1,4096,32,8,128,4e-4,0\nh100,1,4096,32,8,128,9e-4,1\n",
        "accelerator,tokens,hidden,ffn,topk,experts,latency_s\nb200,8192,2048,768,8,128,1e-3\n",
        "cluster,kind,devices,bytes,latency_s\ndgx-h100,all_reduce,8,1e9,5e-3\n",
    ],
)
def test_operators_are_predicted(text: str, tmp_path: Path) -> None:
    """Every kind is known by its columns."""
    path = tmp_path / "operators.csv"
    path.write_text(text)
    (table,) = validate_own_operators(path)
    assert len(table.rows) == text.count("\n") - 1
    assert all(abs(row.error) < 0.6 for row in table.rows)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("m,n,k,latency_s\n8,8,8,1\n", "accelerator is empty"),
        ("accelerator,a,latency_s\nh100,8,1\n", "no kind of operator"),
        ("accelerator,m,n,k,latency_s\nh100,8,,8,1\n", "n is ''"),
        ("accelerator,m,n,k,latency_s\nh100,8,8,8,0\n", "latency_s is 0.0"),
        ("accelerator,m,n,k,latency_s,precision\nh100,8,8,8,1,fp9\n", "precision is 'fp9'"),
        ("accelerator,m,n,k,latency_s,call_overhead_us\nh100,8,8,8,1,-3\n", "call_overhead_us"),
        ("accelerator,m,n,k,latency_s,cores\nh100,8,8,8,1,4\n", "'cores'"),
        ("accelerator,op,rows,columns,latency_s,sustained\nh100,add,8,8,1,1\n", "'sustained'"),
        ("accelerator,m,n,k,latency_s\nh100,8,8,8,1,4\n", "more cells"),
    ],
)
def test_operators_that_cannot_be_are_refused(text: str, sentence: str, tmp_path: Path) -> None:
    """One sentence names the line."""
    path = tmp_path / "operators.csv"
    path.write_text(text)
    with pytest.raises(InputError, match="Line 2 of") as caught:
        validate_own_operators(path)
    assert sentence in str(caught.value)
