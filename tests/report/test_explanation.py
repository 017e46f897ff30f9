"""An explanation for a person."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from rich.console import Console

from phaze_opt.costed_point import Placing, Point
from phaze_opt.explanation.explain import explain_point, explanation_to_json_dict
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.cluster import load_cluster
from phaze_opt.report.explanation import explanation_tables
from phaze_opt.report.explanation_words import (
    explanation_sentences,
    gain_words,
    heavy_layers,
    kind_words,
    stage_words,
)
from phaze_opt.training import Training
from tests.explanation.cases import tiny

WIDTH = 80


@cache
def explained(placement: Placing, hbm_bytes: int = 2**35) -> dict[str, Any]:
    """Explain a small point, as the JSON that is printed."""
    chip = replace(load_accelerator("tpuv4-lanes"), hbm_bytes=hbm_bytes)
    training = Training(32, 4, optimizer="adam")
    point = Point(tiny(microbatch=4), chip, load_cluster("dgx-a100", 16), training, placement)
    record = explanation_to_json_dict(explain_point(point, tiny, {}))
    plain: dict[str, Any] = json.loads(json.dumps(record, allow_nan=False))
    return plain


def text(record: dict[str, Any]) -> str:
    """Show a record on a narrow terminal."""
    console = Console(width=WIDTH, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(explanation_tables("a title [not markup]", record))
    return capture.get()


def test_sentences_hold_the_numbers_of_the_record() -> None:
    """Throughput, largest part, binding resource, best gain and memory are said in words."""
    record = explained((2, 2, 2))
    speed, time, layer, gain, memory = explanation_sentences(record)
    assert f"{record['throughput_samples_per_s']:,.1f} samples/s" in speed
    assert "(2x2x2)" in speed
    parts = record["stage_time"]["parts_s"]
    assert kind_words(max(parts, key=lambda kind: parts[kind])) in time
    assert "block (×4)" in layer and "forward (" in layer and "backward (" in layer
    best = record["gains"][0]
    assert f"{best['throughput_gain']:+.1%} from {gain_words(best['resource'])}" in gain
    assert "would change nothing" in gain
    share = record["memory"]["total_bytes"] / record["memory"]["usable_bytes"]
    assert f"{share:.1%} of the usable" in memory
    for sentence in (speed, time, layer, gain, memory):
        assert sentence.endswith(".") and sentence[0].isupper()


def test_what_does_not_fit_comes_with_what_would() -> None:
    """The reason, the fastest change that fits, and the memory that would do are said."""
    record = explained((1, 4, 1), 2_000_000)
    reason, change, memory = explanation_sentences(record)
    assert reason == f"It does not fit: {record['reason']}"
    best = next(fix for fix in record["fixes"] if "hbm_size" not in fix["kinds"])
    assert best["feasible"] and f"makes it fit is {' '.join(best['options'])}:" in change
    assert "it would need 1 GiB of HBM" in memory
    shown = text(record)
    assert "--recompute full" in shown and "still " in shown and "fits" in shown
    assert "Critical path" not in shown


def test_what_is_short_is_said_once() -> None:
    """Where the reason is one layer, what the whole placement is short of is said too."""
    record = explained("solve", 250_000)
    assert record["reason"].startswith("Layer ")
    shortage = explanation_sentences(record)[1]
    assert shortage.startswith("The placement that needs least memory takes ")
    searched = "Every pipeline depth at the tensor-parallel widths 1, 2 and 4 was tried."
    assert explanation_sentences(record)[2] == searched
    given = explained((1, 4, 1), 2_000_000)
    assert len(explanation_sentences(given)) == 3


def test_a_combination_is_said_to_be_one() -> None:
    """Where no single change fits that is said; and where nothing does."""
    pair = explained("solve", 800_000)
    (sentence,) = [s for s in explanation_sentences(pair) if "change of the training" in s]
    assert "as no single change does" in sentence
    shown = text(pair)
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= WIDTH
    assert "Tried and not shown: " in shown and "?" not in shown
    nothing = explained("solve", 250_000)
    assert "No change of the training run that was tried makes it fit." in explanation_sentences(
        nothing
    )


@pytest.mark.parametrize("placement", ["solve", (2, 2, 2)])
def test_tables_fit_a_narrow_terminal(placement: Placing) -> None:
    """No line is longer than 80 columns, and every table is there with its title."""
    shown = text(explained(placement))
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= WIDTH
    assert "a title [not markup]" in shown
    for title in (
        "What a tenth more of each resource would bring",
        "Time of a batch on the ",
        "Memory of stage 0, the fullest, per device",
        "What binds each layer, in % of its time",
        "What a tenth more of each resource saves of that time",
        "Critical path of block forward",
        "Critical path of block backward",
    ):
        assert title in shown
    assert "PE array rate +10 %" in shown and "network level 1 bandwidth +10 %" in shown


def test_names_are_not_markup() -> None:
    """A layer's or operator's name from a file is shown as it is."""
    record = json.loads(json.dumps(explained((2, 2, 2))))
    record["layers"][1]["name"] = "[bold]mine[/bold]"
    record["layers"][1]["forward_binding"]["critical_path"][0]["id"] = "x[red]" + 50 * "y"
    shown = text(record)
    assert "[bold]mine[/bold]" in shown.replace("\n", "")
    assert "x[red]yyy" in shown and "…" in shown


def test_small_words() -> None:
    """Stages, parts and the layer that counts are named."""
    assert stage_words({"stages": 1, "stage": 0}) == "the only stage"
    assert stage_words({"stages": 8, "stage": 3}) == "the busiest stage (3 of 0 to 7)"
    assert kind_words("gradient_synchronisation") == "gradient synchronisation"
    layers = [
        {"count": 1, "forward_s": 3.0, "backward_s": 0.0, "recompute_s": 0.0},
        {"count": 4, "forward_s": 1.0, "backward_s": 0.0, "recompute_s": 0.5},
        {"count": 1, "forward_s": 0.1, "backward_s": 0.1, "recompute_s": 0.0},
    ]
    assert heavy_layers(layers) == [layers[1], layers[0]]
