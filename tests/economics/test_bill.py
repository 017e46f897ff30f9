"""Bills of evaluated runs: laws, sums, measured power, and what the options change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phaze_opt.cli.main import run_with

from phaze_opt.economics.bill import Bill, bill_of
from phaze_opt.economics.choices import Economics, read_economics
from phaze_opt.economics.constants import grids, system
from phaze_opt.economics.operation import SECONDS_PER_YEAR
from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.evaluation_json import evaluation_from_json_dict, evaluation_to_json_dict
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.bill import network_bill
from phaze_opt.network.level_values import with_level_values
from phaze_opt.network.presets import load_cluster
from phaze_opt.training import Training

MODEL = "bert-large"
RUN = (
    *("--model", MODEL, "--cluster", "dgx-h100", "--devices", "8", "--global-batch", "8"),
    *("--microbatch", "1", "--accelerator", "h100"),
)
STANDARD = Economics()
FOUR = load_cluster("dgx-h100", 4)
JOULES = {"arithmetic": 200.0, "hbm": 40.0, "network": 2.0}


def bill(economics: Economics = STANDARD, **changes: float) -> Bill:
    """Return the bill of an H100 that trains two samples per second."""
    chip = load_accelerator("h100", **changes)
    found = bill_of(chip, economics, FOUR, 2.0, JOULES, 0.5)
    assert found is not None
    return found


def one(**options: Any) -> Evaluation:
    """Evaluate a small run."""
    return evaluate(MODEL, "h100", "dgx-h100", Training(8, 1), devices=8, **options)


@given(grams=st.floats(0.0, 1000.0), more=st.floats(0.0, 500.0), price=st.floats(0.0, 1.0))
def test_a_dirtier_grid_is_never_cleaner_and_a_dearer_one_never_cheaper(
    grams: float, more: float, price: float
) -> None:
    """Neither changes what the other decides."""
    clean = bill(Economics(grid_g_per_kwh=grams, energy_usd_per_kwh=price))
    dirty = bill(Economics(grid_g_per_kwh=grams + more, energy_usd_per_kwh=price + more))
    assert clean.carbon_kg.central <= dirty.carbon_kg.central
    assert clean.tco_usd.central <= dirty.tco_usd.central
    only_dirty = bill(Economics(grid_g_per_kwh=grams + more, energy_usd_per_kwh=price))
    assert only_dirty.tco_usd == clean.tco_usd


@given(volume=st.floats(1.0, 1e7), more=st.floats(1.0, 100.0), margin=st.floats(1.0, 10.0))
def test_more_volume_is_never_dearer(volume: float, more: float, margin: float) -> None:
    """And a larger margin never cheaper."""
    few = bill(Economics(volume=volume, margin=margin))
    many = bill(Economics(volume=volume * more, margin=margin))
    assert many.device_price_usd <= few.device_price_usd
    assert bill(Economics(volume=volume)).device_price_usd <= few.device_price_usd


@pytest.mark.parametrize("economics", [Economics(), Economics("iceland", pue=1.0, margin=8.0)])
def test_parts_sum_and_power_times_time_is_energy(economics: Economics) -> None:
    """What the cluster costs is its price and its electricity; what it emits likewise."""
    stated = replace(economics, lifetime_years=3.0, energy_usd_per_kwh=0.1, pue=1.25)
    found = bill(stated)
    watts = found.wall_power_w_per_device.central
    assert sum(part.central for part in found.power_w.values()) == pytest.approx(watts)
    kwh = 4 * watts * 3.0 * SECONDS_PER_YEAR / 3.6e6 * 1.25
    assert found.tco_usd.central == pytest.approx(4 * found.device_price_usd + 0.1 * kwh)
    embodied_kg = sum(part.central for part in found.embodied_kg.values())
    emitted_kg = 4 * embodied_kg + stated.grid_kg_per_kwh * kwh
    assert found.carbon_kg.central == pytest.approx(emitted_kg)
    millions = 2.0 * 3.0 * SECONDS_PER_YEAR / 1e6
    per_million = found.cost_usd_per_million_samples.central
    assert per_million * millions == pytest.approx(found.tco_usd.central)


def test_every_figure_lies_in_its_range() -> None:
    """Of the parts too."""
    found = bill()
    figures = [found.tco_usd, found.carbon_kg, found.cost_usd_per_million_samples]
    for figure in (*figures, *found.device_usd.values(), *found.power_w.values()):
        assert figure.low <= figure.central <= figure.high
    assert found.tco_usd.low < found.tco_usd.high


def test_a_tpu_v4_takes_what_google_states() -> None:
    """170 W in the mean and 192 at most, within 10 %: a Llama that keeps its arrays busy."""
    training = Training(256, 1, optimizer="adam", zero=1, recompute="full")
    run = evaluate("llama3-8b", "tpuv4", "tpuv4-torus", training, devices=64)
    watts = run.power_w_per_device + run.static_power_w_per_device
    assert 170 * 0.9 <= watts <= 192 * 1.1


def test_a_node_of_eight_h100_takes_what_was_measured() -> None:
    """7.7 to 8.5 kW within 10 %: a Llama 2 (Latif et al., arXiv 2412.08602, of 13B)."""
    training = Training(64, 1, optimizer="adam", zero=3, recompute="full")
    run = evaluate("llama2-7b", "h100", "dgx-h100", training, devices=8)
    assert run.bill is not None
    own = system("central")
    optics_w = own.network_w * (1.0 + own.fan_share) / own.supply_efficiency
    node_w = 8 * (run.bill.wall_power_w_per_device.central - optics_w)
    assert 7700 * 0.9 <= node_w <= 8500 * 1.1


def test_no_time_or_energy_depends_on_what_is_paid() -> None:
    """All but the bill is the same to the bit."""
    dear = "grid=india,margin=9,energy_usd_per_kwh=0.5"
    plain, paid = (replace(one(**options), bill=None) for options in ({}, {"economics": dear}))
    assert evaluation_to_json_dict(plain) == evaluation_to_json_dict(paid)


def test_a_bill_is_read_back() -> None:
    """As a database keeps it."""
    for found in (one(), one(economics="network=levels")):
        plain = json.loads(json.dumps(evaluation_to_json_dict(found)))
        assert evaluation_from_json_dict(plain) == found


def test_a_chip_of_unknown_dies_has_no_bill() -> None:
    """Nothing is guessed, and what does not fit costs nothing."""
    chip = load_accelerator("h100", glb_mib=100_000)
    assert bill_of(chip, Economics(), FOUR, 1.0, JOULES, 1.0) is None
    assert one(power_limit_w=1.0).bill is None


def test_the_command_line_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As numbers, and as a file; in text with how far it is known."""
    path = tmp_path / "europe.toml"
    path.write_text('grid = "europe"\nmargin = 7\n')
    found = []
    for stated in ("grid=europe,margin=7", str(path)):
        assert run_with(["evaluate", *RUN, "--economics", stated, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    low, high = found[0]["cost_usd_per_million_samples_range"]
    assert low < found[0]["cost_usd_per_million_samples"] < high
    assert found[0]["bill"]["device_usd"]["silicon"].keys() == {"low", "central", "high"}
    assert run_with(["explain", *RUN, "--economics", str(path)]) == 0
    assert "A million samples cost" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ("grid=mars", "Unknown grid 'mars'"),
        ("margn=2", "margn"),
        ("margin=0.5", "margin is 0.5, but it must be at least 1"),
        ("lifetime_years=0", "lifetime_years is 0, but it must be positive"),
        ("volume=inf", "volume is inf"),
        ("pue", "economics is 'pue', but it must be a file, or numbers"),
        ("network=mesh", "network"),
        ("network=levels,network_usd=9", "network_usd is 9 and network is levels"),
        ("grid_g_per_kwh=-1", "grid_g_per_kwh is -1, but it must be at least 0"),
    ],
)
def test_wrong_choices_are_refused(stated: str, message: str) -> None:
    """In one sentence."""
    with pytest.raises(InputError, match=message):
        read_economics(stated)


def test_a_network_of_levels_is_what_cluster_bill_says() -> None:
    """Price and power of a device are its share of those of all levels, low, central and high."""
    chip, cluster = load_accelerator("h100"), load_cluster("dgx-h100", 64)
    found = bill_of(chip, Economics(network="levels"), cluster, 2.0, JOULES, 0.5)
    plain = bill_of(chip, STANDARD, cluster, 2.0, JOULES, 0.5)
    assert found is not None and plain is not None
    levels = network_bill(cluster, 64)
    share = levels.usd.times(1 / 64)
    assert found.device_usd["network"] == share
    assert found.network == levels and plain.network is None
    others = {**found.device_usd, "network": plain.device_usd["network"]}
    assert others == plain.device_usd
    watts = found.power_w["network"].central - plain.power_w["network"].central
    assert watts == pytest.approx(levels.power_w.central / 64 - system("central").network_w)


@given(links=st.integers(1, 36), more=st.integers(1, 36), devices=st.sampled_from([8, 64, 1024]))
def test_more_links_are_never_cheaper(links: int, more: int, devices: int) -> None:
    """Where levels are paid; else the network of the run changes nothing that is paid."""

    def cost(links: int, economics: Economics) -> Bill:
        name = "network.0.bandwidth_gb_per_s"
        cluster = with_level_values(load_cluster("dgx-h100", devices), {name: 25 * links}, "test")
        found = bill_of(load_accelerator("h100"), economics, cluster, 2.0, JOULES, 0.5)
        assert found is not None
        return found

    few, many = (cost(each, Economics(network="levels")) for each in (links, links + more))
    assert few.tco_usd.central < many.tco_usd.central
    assert few.wall_power_w_per_device.central < many.wall_power_w_per_device.central
    assert cost(links, STANDARD) == cost(links + more, STANDARD)


def test_the_bill_of_levels_stands_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Where economics are stated, as `cluster bill` prints it; else the key is not there."""
    assert run_with(["evaluate", *RUN, "--json"]) == 0
    assert "network" not in json.loads(capsys.readouterr().out)["bill"]
    assert run_with(["evaluate", *RUN, "--economics", "network=levels", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["bill"]
    assert run_with(["cluster", "bill", "dgx-h100", "--devices", "8", "--json"]) == 0
    assert found["network"] == json.loads(capsys.readouterr().out)
    assert found["device_usd"]["network"]["central"] == found["network"]["usd"]["central"] / 8


def test_every_grid_is_known() -> None:
    """From Iceland's water to India's coal."""
    assert grids()["iceland"] < grids()["europe"] < grids()["world"] < grids()["india"]
