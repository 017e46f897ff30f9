"""An explanation for a person."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from rich.console import Console

from phaze_opt.explanation.explain import Explanation, explain_point
from phaze_opt.explanation.stage import LayerBinding
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.point import Placing, Point
from phaze_opt.report.explanation import explanation_tables
from phaze_opt.report.explanation_words import (
    explanation_sentences,
    gain_words,
    heavy_layers,
    stage_words,
)
from phaze_opt.report.words import kind_words
from phaze_opt.training import Training
from phaze_opt.units import format_number
from tests.explanation.cases import load_tiny, tiny

WIDTH = 80


@cache
def explained(placement: Placing, hbm_bytes: int = 2**35, devices: int = 16) -> Explanation:
    """Explain a small point."""
    chip = replace(load_accelerator("tpuv4-lanes"), hbm_bytes=hbm_bytes)
    training = Training(32, 4, optimizer="adam")
    point = Point(tiny(microbatch=4), chip, load_cluster("dgx-a100", devices), training, placement)
    return explain_point(point, load_tiny, {})


def text(explanation: Explanation) -> str:
    """Show an explanation on a narrow terminal."""
    console = Console(width=WIDTH, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(explanation_tables(explanation, "a title [not markup]"))
    return capture.get()


def test_sentences_hold_the_numbers_of_the_explanation() -> None:
    """Throughput, largest part, binding resource, best gain and memory are said in words."""
    explanation = explained((2, 2, 2), devices=8)
    speed, time, network, *more, layer, gain, memory, bill = explanation_sentences(explanation)
    assert "hidden beside compute" in network
    assert ["--overlap all" in sentence for sentence in more] == [True]
    assert f"{format_number(explanation.evaluation.throughput_samples_per_s)} samples/s" in speed
    assert "(2x2x2)" in speed
    assert explanation.stage is not None and explanation.memory is not None
    parts = explanation.stage.parts_s
    assert kind_words(max(parts, key=lambda kind: parts[kind])) in time
    assert "block (×4)" in layer and "forward (" in layer and "backward (" in layer
    best = explanation.gains[0]
    assert f"{best.throughput_gain:+.1%} from {gain_words(best.resource)}" in gain
    assert "would change nothing" in gain
    share = explanation.memory.total_bytes / explanation.memory.usable_bytes
    assert f"{share:.1%} of the usable" in memory
    assert explanation.evaluation.bill is not None
    usd = explanation.evaluation.bill.cost_usd_per_million_samples.central
    assert f"{format_number(usd)} USD ± " in bill and "for its host" in bill
    for sentence in (speed, time, layer, gain, memory, bill):
        assert sentence.endswith(".") and sentence[0].isupper()


def test_idle_devices_and_padding_are_said() -> None:
    """What the run leaves idle, and what it trains unasked, are sentences of their own."""
    explanation = explained((2, 2, 2))
    assert "It leaves 8 devices idle." in explanation_sentences(explanation)
    padded = replace(explanation, evaluation=replace(explanation.evaluation, padding_samples=3))
    (sentence,) = [s for s in explanation_sentences(padded) if "3 samples per" in s]
    assert sentence.startswith("It trains 3 samples per batch beyond the global batch")


def test_what_does_not_fit_comes_with_what_would() -> None:
    """The reason, the fastest change that fits, and the memory that would do are said."""
    explanation = explained((1, 4, 1), 2_000_000)
    reason, change, memory = explanation_sentences(explanation)
    assert reason == f"It does not fit: {explanation.evaluation.reason}"
    best = next(fix for fix in explanation.fixes if "hbm_size" not in fix.kinds)
    assert best.feasible and f"makes it fit is {' '.join(best.options)}:" in change
    assert "it would need 1 GiB of HBM" in memory
    shown = text(explanation)
    assert "--recompute full" in shown and "still " in shown and "fits" in shown
    assert "Critical path" not in shown


def test_too_much_power_is_said_in_watts() -> None:
    """Where a power limit is the reason, the changes that miss it say their power."""
    chip, cluster = load_accelerator("tpuv4-lanes"), load_cluster("dgx-a100", 16)
    point = Point(tiny(microbatch=4), chip, cluster, Training(32, 4), (2, 2, 2), power_limit_w=0.1)
    explanation = explain_point(point, load_tiny, {})
    shown = " ".join(text(explanation).split())
    reason, *_ = explanation_sentences(explanation)
    assert " W per device is above the limit of 0.1 W." in reason
    missing = [fix for fix in explanation.fixes if not fix.feasible and fix.power_w_per_device]
    assert missing and f"takes {missing[0].power_w_per_device:.4g} W" in shown


def test_what_is_short_is_said_once() -> None:
    """Where the reason is one layer, what the whole placement is short of is said too."""
    explanation = explained("solve", 250_000)
    assert str(explanation.evaluation.reason).startswith("Layer ")
    _, shortage, searched, *_ = explanation_sentences(explanation)
    assert shortage.startswith("The placement that needs least memory takes ")
    assert searched == ("Every pipeline depth at the tensor degrees 1, 2 and 4 was tried.")
    assert len(explanation_sentences(explained((1, 4, 1), 2_000_000))) == 3


def test_a_combination_is_said_to_be_one() -> None:
    """Where no single change fits that is said; and where nothing does."""
    pair = explained("solve", 800_000)
    (sentence,) = [s for s in explanation_sentences(pair) if "change of the training" in s]
    assert "as no single change does" in sentence
    shown = text(pair)
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= WIDTH
    assert "Tried and not shown: " in shown and "?" not in shown
    nothing = explanation_sentences(explained("solve", 250_000))
    assert "No change of the training run that was tried makes it fit." in nothing


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
    """A name from a file is shown as it is, and cut where it is too long."""
    explanation = explained((2, 2, 2))
    embedding, layer, *others = explanation.layers
    first, *steps = layer.forward.critical_path
    hostile = replace(first, id="x[red]" + 50 * "y")
    forward = replace(layer.forward, critical_path=(hostile, *steps))
    renamed = replace(layer, name="[b]mine[/b]", forward=forward)
    shown = text(replace(explanation, layers=(embedding, renamed, *others)))
    assert "[b]mine[/b]" in shown
    assert "x[red]yyy" in shown and "…" in shown


def test_small_words() -> None:
    """Stages, parts and the layer that counts are named."""
    stage = explained((2, 2, 2)).stage
    assert stage is not None
    assert stage_words(replace(stage, stages=1, stage=0)) == "the only stage"
    assert stage_words(replace(stage, stages=8, stage=3)) == "the busiest stage (3 of 0 to 7)"
    assert kind_words("gradient_synchronisation") == "gradient synchronisation"
    block = explained((2, 2, 2)).layers[1]

    def layer(count: int, *seconds: float) -> LayerBinding:
        passes = [replace(block.forward, makespan_s=makespan_s) for makespan_s in seconds]
        return LayerBinding("layer", count, *passes)

    layers = [layer(1, 3.0, 0.0, 0.0), layer(4, 1.0, 0.0, 0.5), layer(1, 0.1, 0.1, 0.0)]
    assert heavy_layers(layers) == [layers[1], layers[0]]
