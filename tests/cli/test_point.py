"""``phaze-opt evaluate`` and ``phaze-opt explain``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.units import format_number
from tests.cli.conftest import Phaze, Ran
from tests.interchange.traces import read_folder

OPTIONS = {
    "model": "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128",
    "accelerator": "tpuv4-phaze",
    "cluster": "tpuv4-ici-flat",
    "devices": "4",
    "global-batch": "16",
    "microbatch": "2",
}


def run(phaze: Phaze, command: str, *more: str, **changes: str) -> Ran:
    """Run a command on a small model."""
    options = {**OPTIONS, **changes}
    pairs = [part for key, value in options.items() for part in (f"--{key}", value)]
    return phaze(command, *pairs, *more)


def evaluate(phaze: Phaze, *more: str, **changes: str) -> Ran:
    """Evaluate a small model."""
    return run(phaze, "evaluate", *more, **changes)


def test_json_has_the_promised_keys(phaze: Phaze) -> None:
    """The JSON holds what scripts rely on, and its parts add up."""
    record: dict[str, Any] = evaluate(phaze, "--json").json
    assert record["feasible"] is True and record["reason"] is None
    assert record["throughput_samples_per_s"] == pytest.approx(16 / record["time_per_batch_s"])
    assert sum(record["time_breakdown_s"].values()) == pytest.approx(record["time_per_batch_s"])
    assert 0 < record["mfu"] <= 1
    placement = record["placement"]
    assert placement.keys() >= {"pipeline", "data", "tensor", "microbatches", "stages"}
    assert (placement["status"], placement["gap"]) == ("optimal", 0.0)
    assert placement["bound_s"] == record["time_per_batch_s"]
    for stage in placement["stages"]:
        memory = stage["memory_bytes"]
        parts = ("parameters", "gradients", "optimizer", "stash", "transient")
        assert sum(memory[part] for part in parts) == memory["total"]
    for layer in record["layers"]:
        assert layer["forward_schedule"].keys() >= {"status", "bound_s", "gap"}


def test_table_says_the_same(phaze: Phaze) -> None:
    """The table shows the numbers of the JSON."""
    record = evaluate(phaze, "--json").json
    table = evaluate(phaze).out
    assert f"{format_number(record['throughput_samples_per_s'])} samples/s" in table
    assert "bound by" in table and "block" in table


def test_degrees_are_taken(phaze: Phaze) -> None:
    """A given placement is used, and is never faster than the solved one."""
    given = evaluate(phaze, "--placement", "2x2x1", "--json").json
    assert [given["placement"][key] for key in ("pipeline", "data", "tensor")] == [2, 2, 1]
    assert [given["placement"][key] for key in ("status", "bound_s", "gap")] == [None, None, None]
    solved = evaluate(phaze, "--json").json
    assert solved["time_per_batch_s"] <= given["time_per_batch_s"]


def test_what_pytorch_runs_unfused_is_stated(phaze: Phaze) -> None:
    """FSDP's copies take time, and so do the kernels of its optimizer, whatever else is fused."""
    sharded = ("--json", "--zero", "3", "--placement", "1x4x1")
    chip = {"accelerator": "a100-80", "cluster": "dgx-a100"}

    def parts(*more: str, optimizer: str = "adam") -> dict[str, float]:
        record = evaluate(phaze, *sharded, *more, optimizer=optimizer, **chip).json
        return {"total": record["time_per_batch_s"], **record["time_breakdown_s"]}

    fused, copied = parts(), parts("--gather-copies")
    assert copied["total"] > fused["total"]
    assert copied["optimizer"] == fused["optimizer"]
    for fusion in ("none", "elementwise", "epilogue"):
        step_s = parts("--fusion", fusion, optimizer="adam-foreach")["optimizer"]
        assert step_s == pytest.approx(fused["optimizer"] * 98 / 68)


def check_passes(written: list[dict[str, Any]], layers: list[dict[str, Any]]) -> None:
    """Every pass of the distinct layers is a process, and takes what the answer says."""
    passes = [(layer, way) for layer in layers for way in ("forward", "backward")]
    for process, (layer, way) in enumerate(passes, start=2):
        own = [event for event in written if event["pid"] == process]
        assert own[0]["args"]["name"] == f"{layer['name']} {way}"
        ends = [event["ts"] + event["dur"] for event in own if event["ph"] == "X"]
        assert max(ends) == pytest.approx(1e6 * layer[f"{way}_s"])


def test_timeline_is_that_of_the_slice(phaze: Phaze) -> None:
    """Four devices of a torus take a slice of it, on which collectives take other times."""
    torus = {"cluster": "tpuv4-torus", "accelerator": "tpuv4-lanes", "devices": "32"}
    options = ("--placement", "1x2x2", "--timeline", "slice.json", "--json")
    ran = evaluate(phaze, *options, **torus)
    check_passes(
        json.loads(Path("slice.json").read_text("utf-8"))["traceEvents"], ran.json["layers"]
    )


def test_timeline_is_written(phaze: Phaze) -> None:
    """The pipeline's timeline has a lane per stage and ends with the batch; none if infeasible.

    Every pass of a distinct layer is a process of its own, with what stays on the chip.
    """
    ran = evaluate(phaze, "--placement", "2x2x1", "--timeline", "t.json", "--json")
    written = json.loads(Path("t.json").read_text("utf-8"))["traceEvents"]
    check_passes(written, ran.json["layers"])
    assert any(event.get("cat") == "tensor" and event["args"]["bytes"] > 0 for event in written)
    events = [event for event in written if event["pid"] == 1]
    lanes = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert sum("network" not in lane for lane in lanes) == 2
    end_us = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert end_us == pytest.approx(1e6 * ran.json["time_per_batch_s"])
    assert evaluate(phaze, "--set", "hbm_bytes=200000", "--timeline", "no.json").code == 5
    assert not Path("no.json").exists()
    assert evaluate(phaze, "--timeline", "no/such/folder.json").code == 2


def test_traces_are_written(phaze: Phaze) -> None:
    """A file per rank, or per stage; none if infeasible; the answer is the same without them."""
    placed = ("--placement", "2x2x1", "--json")
    plain = evaluate(phaze, *placed)
    assert evaluate(phaze, *placed, "--chakra", "a").out == plain.out
    traces, _ = read_folder(Path("a"))
    nodes = [node for trace in traces.values() for node in trace.nodes.values()]
    us = max(node.start + node.duration for node in nodes)
    assert us == pytest.approx(1e6 * plain.json["time_per_batch_s"], abs=1.01)
    names = sorted(path.name for path in Path("a").iterdir())
    assert names == ["comm_groups.json", *(f"trace.{rank}.et" for rank in range(4))]
    assert evaluate(phaze, *placed, "--chakra", "b", "--chakra-ranks", "stages").code == 0
    assert len(list(Path("b").iterdir())) == 3
    assert evaluate(phaze, "--set", "hbm_bytes=200000", "--chakra", "no").code == 5
    Path("file").write_text("")
    for folder, code in (("a", 4), ("file", 2), ("no/such", 2), ("x" * 300, 2)):
        ran = evaluate(phaze, "--chakra", folder)
        assert ran.code == code and ran.sentence.startswith("Error: The folder "), ran.err
    assert "need --chakra" in evaluate(phaze, "--chakra-ranks", "stages").sentence
    assert not Path("no").exists() and not list(Path().glob("*.part"))


@pytest.mark.parametrize("command", ["evaluate", "explain"])
def test_power_above_the_boards_is_warned_of(phaze: Phaze, command: str) -> None:
    """On stderr, with JSON too, and in the text of an evaluation; without a rating not at all."""
    rated = ("--set", "tdp_w=0.001")
    for options in ((*rated, "--json"), rated):
        hot = run(phaze, command, *options)
        assert hot.code == 0 and "but its board is rated for 0.001 W" in hot.sentence
    said = "more than the 0.001 W that its board is rated for"
    assert (said in " ".join(hot.out.split())) == (command == "evaluate")
    assert "warning" not in run(phaze, command).err


def test_infeasible_still_answers(phaze: Phaze) -> None:
    """What does not fit exits with 5, with the same keys and the reason on stdout."""
    ran = evaluate(phaze, "--set", "hbm_bytes=200000", "--json")
    assert ran.code == 5
    record = ran.json
    assert record["feasible"] is False
    assert record["throughput_samples_per_s"] == record["mfu"] == 0.0
    assert record["hfu"] == record["mfu_causal"] == 0.0
    assert record["time_per_batch_s"] is None and record["placement"] is None
    assert record["reason"].endswith(".")
    assert record.keys() == evaluate(phaze, "--json").json.keys()
    table = evaluate(phaze, "--set", "hbm_bytes=200000")
    assert table.code == 5 and "infeasible" in table.out


@pytest.mark.parametrize("command", ["evaluate", "explain"])
def test_too_much_power_is_said_in_watts(phaze: Phaze, command: str) -> None:
    """Above a power limit the text names power and limit; the JSON keeps the power."""
    power_w = run(phaze, command, "--json").json["power_w_per_device"]
    limited = run(phaze, command, "--power-limit-w", "1.5")
    assert limited.code == 5
    words = " ".join(limited.out.split())
    assert f"The average power of {power_w:.4g} W per device is above the limit of 1.5 W." in words
    record = run(phaze, command, "--power-limit-w", "1.5", "--json").json
    assert (record["feasible"], record["power_w_per_device"]) == (False, power_w)


@pytest.mark.parametrize("command", ["evaluate", "explain"])
def test_idle_devices_and_padding_are_said(phaze: Phaze, command: str) -> None:
    """The text says which devices no stage runs on, and samples that were not asked for."""
    changes = {"devices": "7", "global-batch": "17", "placement": "2x2x1"}
    record = run(phaze, command, "--json", **changes).json
    assert (record["unused_devices"], record["padding_samples"]) == (3, 3)
    words = " ".join(run(phaze, command, **changes).out.split())
    assert "3 samples per batch beyond the global batch" in words
    assert {"evaluate": "4 used, 3 idle", "explain": "leaves 3 devices idle"}[command] in words


def test_json_has_all_of_evaluate_and_the_reasons(phaze: Phaze) -> None:
    """The record of ``evaluate`` is part of the record of ``explain``."""
    record: dict[str, Any] = run(phaze, "explain", "--json").json
    evaluation = run(phaze, "evaluate", "--json").json
    for key in evaluation.keys() - {"layers"}:
        assert record[key] == evaluation[key]
    assert record.keys() - evaluation.keys() == {
        "stage_time", "memory", "searched_tensor", "gains", "overlap_gains", "fixes",
        "range_by_rate_s", "launch_gains", "host_bound",
    }  # fmt: skip
    assert sum(record["stage_time"]["parts_s"].values()) == pytest.approx(
        record["time_per_batch_s"]
    )
    for layer in record["layers"]:
        for name in ("forward", "backward"):
            binding = layer[f"{name}_binding"]
            assert sum(binding["bound_s"].values()) == pytest.approx(layer[f"{name}_s"])
            assert binding["critical_path"][0]["start_s"] == 0.0
        assert layer["recompute_binding"] is None
    names = {gain["resource"] for gain in record["gains"]}
    assert names >= {"compute", "lanes", "glb", "hbm", "hbm_size", "link_0", "overhead"}


@pytest.mark.parametrize(
    ("resource", "field", "before"),
    [
        ("hbm", "hbm_bytes_per_s", 1200e9),
        ("glb", "glb_bytes_per_cycle", 4096),
        ("clock", "clock_hz", 1.05e9),
    ],
)
def test_a_gain_can_be_checked_with_evaluate(
    phaze: Phaze, resource: str, field: str, before: float
) -> None:
    """Setting the field to a tenth more gives the time that was predicted."""
    (gain,) = [
        gain
        for gain in run(phaze, "explain", "--json").json["gains"]
        if gain["resource"] == resource
    ]
    changed = run(phaze, "evaluate", "--json", set=f"{field}={before * 1.1!r}").json
    assert changed["time_per_batch_s"] == pytest.approx(gain["time_per_batch_s"], rel=1e-12)


def test_what_fits_can_be_checked_with_evaluate(phaze: Phaze) -> None:
    """The options of every fix, added to the line, give what it says."""
    given = {"placement": "1x4x1", "set": "hbm_bytes=1000000", "optimizer": "adam"}
    ran = run(phaze, "explain", "--json", **given)
    assert ran.code == 5
    assert ran.json["feasible"] is False and ran.json["gains"] == []
    assert {fix["feasible"] for fix in ran.json["fixes"]} == {True, False}
    for fix in ran.json["fixes"]:
        words = [word for option in fix["options"] for word in shlex.split(option)]
        tried = run(phaze, "evaluate", "--json", *words, **given)
        assert tried.code == (0 if fix["feasible"] else 5)
        assert tried.json["time_per_batch_s"] == fix["time_per_batch_s"]


def test_words_come_before_tables(phaze: Phaze) -> None:
    """A person reads sentences first, then tables, none wider than 80 columns."""
    lines = run(phaze, "explain").out.splitlines()
    assert lines[2].startswith("It trains ")
    assert any(line.startswith("What binds each layer") for line in lines)
    assert max(len(line.rstrip()) for line in lines) <= 80
    infeasible = run(phaze, "explain", set="hbm_bytes=200000")
    assert infeasible.code == 5
    assert "It does not fit: " in infeasible.out
    assert "What was tried to make it fit" in infeasible.out


def test_both_commands_take_the_same_options(phaze: Phaze) -> None:
    """All but degraded clusters, and what ``evaluate`` writes, is taken by ``explain`` too."""

    def options(command: str) -> set[str]:
        words = phaze(command, "--help").out.replace("│", " ").split()
        return {word for word in words if word.startswith("--")}

    own = {"--timeline", "--chakra", "--chakra-ranks", "--force", "--degrade", "--spare-nodes"}
    assert options("evaluate") - own <= options("explain")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "bert-huge"}, "Unknown model"),
        ({"model": "gpt:layers=2"}, "hidden"),
        ({"accelerator": "tpuv5"}, "Did you mean"),
        ({"cluster": "ethernet"}, "Unknown cluster"),
        ({"devices": "0"}, "devices is 0"),
        ({"devices": "many"}, "--devices"),
        ({"global-batch": "0"}, "global_batch is 0"),
        ({"microbatch": "32"}, "global batch of 16"),
        ({"microbatch": "0"}, "microbatch is 0"),
        ({"recompute": "some"}, "selective"),
        ({"optimizer": "lion"}, "adam"),
        ({"placement": "2x2"}, "PPxDPxTP"),
        ({"set": "pe_x=-3"}, "pe_x"),
        ({"set": "glb_mib=nan"}, "glb"),
    ],
)
def test_bad_values_are_named(phaze: Phaze, changes: dict[str, str], sentence: str) -> None:
    """A value that is not allowed is named, with exit code 2 and nothing on stdout."""
    for command in ("evaluate", "explain"):
        ran = run(phaze, command, **changes)
        assert (ran.code, ran.out) == (2, "")
        assert sentence in ran.sentence


LONG = (
    '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, '
    '"num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 2, '
    '"vocab_size": 128, "max_position_embeddings": 131072}'
)


def test_a_configurations_longest_sequence_is_never_taken_in_silence(phaze: Phaze) -> None:
    """It is asked for, and the tables say how many tokens a sample has."""
    Path("config.json").write_text(LONG)
    for command in ("evaluate", "explain"):
        for model in ("config.json", "hf:."):
            refused = run(phaze, command, model=model)
            assert (refused.code, refused.out) == (2, "")
            assert "131072 tokens per sample" in refused.sentence
            assert "--sequence 4096" in refused.sentence
        ran = run(phaze, command, "--sequence", "1024", model="config.json")
        assert ran.code == 0
        assert "config.json, sequence 1,024, on 4 × " in " ".join(ran.out.split())
    for more in (("show", "config.json"), ("capture", "config.json", "--output", "a.json")):
        assert phaze("workload", *more).code == 2
    assert not Path("a.json").exists()


@pytest.mark.parametrize("command", ["evaluate", "explain"])
def test_what_takes_too_much_memory_is_refused(phaze: Phaze, command: str) -> None:
    """A million devices that share out what they hold: with what it would need, and what less."""
    million = {"devices": "1000000", "global-batch": "4000000", "model": "bert-large"}
    ran = run(phaze, command, **million, cluster="dgx-a100", accelerator="a100-80", zero="2")
    assert (ran.code, ran.out) == (2, "")
    assert "GB of memory" in ran.sentence and "--placement PPxDPxTP" in ran.sentence
    assert run(phaze, "evaluate", **million).code == 0


def test_frozen_parts_and_adapters_are_stated(phaze: Phaze) -> None:
    """In the title, in every command that takes a model by name, and alike in both."""
    whole = evaluate(phaze, "--json").json
    frozen = evaluate(phaze, "--frozen", "block.*.feed_forward", "--frozen", "block.0", "--json")
    assert frozen.json["time_per_batch_s"] < whole["time_per_batch_s"]
    adapters = ("--lora", "4", "--lora-targets", "linear_qkv, linear_fc2")
    ran = evaluate(phaze, *adapters)
    assert "LoRA of rank 4 of linear_qkv, linear_fc2" in " ".join(ran.out.split())
    assert run(phaze, "explain", *adapters).code == 0
    model = OPTIONS["model"]
    written = (*adapters, "--microbatch", "2", "--output", "adapters.json")
    assert phaze("workload", "capture", model, *written).code == 0
    by_file = evaluate(phaze, "--placement", "1x4x1", "--json", model="adapters.json").json
    by_name = evaluate(phaze, *adapters, "--placement", "1x4x1", "--json").json
    assert by_file == by_name
    shown = phaze("workload", "show", model, *adapters, "--json").json["layers"]
    assert [layer["frozen_parameters"] < layer["parameters"] for layer in shown] == [
        *(False, True, True, False)
    ]
    refused = evaluate(phaze, "--frozen", "layers")
    assert refused.code == 2 and "block.*.feed_forward.up.weights.0" in refused.sentence


def test_degraded_clusters(phaze: Phaze) -> None:
    """Text and JSON say what is left as it stands and placed again; nothing else changes."""
    nodes = {"cluster": "dgx-h100", "devices": "16"}
    options = ("--degrade", "slow-device=0.5", "--degrade", "lost-node=1", "--spare-nodes", "1")
    record = evaluate(phaze, *options, "--json", **nodes).json
    degraded = record.pop("degraded")
    assert record == evaluate(phaze, "--json", **nodes).json
    assert (
        degraded["replaced"]["throughput_samples_per_s"]
        >= degraded["throughput_samples_per_s"]
        > 0.0
    )
    words = evaluate(phaze, *options, **nodes).out.partition("Degraded")[2]
    assert f"{format_number(degraded['throughput_samples_per_s'])} samples/s" in words
    assert f"{format_number(degraded['replaced']['throughput_samples_per_s'])} samples/s" in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--degrade", "lost-node=1"), "has one level, and no nodes"),
        (("--degrade", "link.3=0.5"), "link_level is 3, but the network of 'tpuv4-ici-flat' has 1"),
        (("--degrade", "broken=1"), "Unknown degradation 'broken'."),
        (("--spare-nodes", "1"), "--spare-nodes is 1, but nothing is degraded"),
    ],
)
def test_a_degradation_that_is_none(phaze: Phaze, options: tuple[str, ...], words: str) -> None:
    """Is refused in one sentence."""
    refused = evaluate(phaze, *options)
    assert refused.code == 2 and words in refused.err and refused.err.count("\n") == 1


KINDS = {"accelerator": "a100-80=8,h100=8", "cluster": "dgx-a100", "devices": "16"}


def test_several_kinds_of_device(phaze: Phaze) -> None:
    """Text and JSON say on which kind each stage is."""
    record = evaluate(phaze, "--json", **KINDS).json
    assert set(record["accelerators"]) <= {"a100-80", "h100"}
    assert len(record["accelerators"]) == record["placement"]["pipeline"]
    out = evaluate(phaze, **KINDS).out
    assert "accelerator" in out.partition("Stages")[2] and "area" not in out
    assert "on 8 × a100-80 and 8 × h100, dgx-a100" in " ".join(out.split())


@pytest.mark.parametrize(
    ("command", "options", "changes", "words"),
    [
        ("evaluate", (), {"devices": "24"}, "have 8 + 8, which is 16; it must be as many."),
        ("evaluate", (), {"accelerator": "h100=0,a100-80=16"}, "There are 0 devices of h100, but"),
        ("evaluate", (), {"accelerator": "h100=x,a100-80=8"}, "as a100-80=64,h100=32."),
        ("evaluate", ("--set", "glb_mib=64"), {}, "do not go with --set"),
        ("evaluate", ("--timeline", "out.html"), {}, "do not go with --timeline"),
        ("evaluate", ("--degrade", "lost-node=1"), {}, "do not go with --degrade"),
        ("evaluate", (), {"accelerator": "h100=8,h100=8"}, "accelerator states h100 twice"),
        ("evaluate", (), {"accelerator": "h100=8,none=8"}, "Unknown accelerator 'none'."),
        ("explain", (), {}, "several kinds of device, which only the command evaluate"),
    ],
)
def test_what_several_kinds_do_not_go_with(
    phaze: Phaze,
    command: str,
    options: tuple[str, ...],
    changes: dict[str, str],
    words: str,
) -> None:
    """Is refused in one sentence."""
    refused = run(phaze, command, *options, **{**KINDS, **changes})
    assert refused.code == 2 and words in refused.err and refused.err.count("\n") == 1
