"""The experiments of the paper, small: what must hold, and that they come out the same again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from phaze_opt.sharing.export_import import import_snapshot, read_bundle_file
from phaze_opt.store.opening import open_storage
from phaze_opt.study.study import load_study
from studies.paper.__main__ import bundle, write
from studies.paper.binding import shares
from studies.paper.checks import WrongResultError, check
from studies.paper.committed import read_comparison, read_fronts, redraw
from studies.paper.comparison import PLACEMENTS
from studies.paper.experiments import ALONE, COMMON, OURS, Results, run_everything
from studies.paper.figures import area_figure, throughput_figure
from studies.paper.page import answer, common_sentence, front_words
from studies.paper.settings import BASELINES, SPECS, Scope
from studies.paper.tables import CHIPS, csv_files, fronts_csv, main_table, mean_relative
from studies.work import Work

MODEL = "bert-large"
SCOPE = Scope(
    models=(MODEL,),
    ablated=(MODEL,),
    robust=(MODEL,),
    today=(MODEL,),
    fronts=(MODEL,),
    built=(MODEL,),
    options=1,
    axes={
        "num_tc": [2, 8],
        "pe_x": [128],
        "pe_y": [128],
        "num_vc": [2],
        "pe_vc": [128],
        "glb_mib": [16, 128],
        "hbm_gib": [32],
        "microbatch": [1],
    },
    run={"devices": 8, "global_batch": 32, "tensor_parallel": (1, 2)},
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Return the work of a run of this module."""
    return Work(tmp_path_factory.mktemp("paper"), workers=1, tell=lambda line: None)


@pytest.fixture(scope="module")
def results(work: Work) -> Results:
    """Return the results of a small run."""
    return run_everything(work, SCOPE)


def test_what_must_hold_holds(results: Results) -> None:
    """Every statement is checked, of every kind, and one that is wrong is found."""
    assert check(results) > 50
    first, *others = results.runs
    for wrong in (
        replace(first, least_time_s=2.0 * (first.time_per_batch_s or 0.0)),
        replace(first, throughput_samples_per_s=1e9),
        replace(first, mfu=1.5),
    ):
        with pytest.raises(WrongResultError):
            check(replace(results, runs=(wrong, *others)))
    assert all(placed.throughput_samples_per_s > 0.0 for placed in results.placed)
    fast = replace(results.placed[0], throughput_samples_per_s=1e9)
    with pytest.raises(WrongResultError, match="published cost"):
        check(replace(results, placed=(fast,)))
    slow = {MODEL: replace(results.ours[MODEL], value=1.0)}
    with pytest.raises(WrongResultError, match="best of the space"):
        check(replace(results, ours={**results.ours, **slow}))


def test_a_second_run_is_the_same_and_asks_nothing(
    work: Work, results: Results, tmp_path: Path
) -> None:
    """What is kept is not computed again; from nothing, every table is the same to the digit."""
    lines: list[str] = []
    again = run_everything(Work(work.folder, 1, lines.append), SCOPE)
    assert lines == []
    assert again == results
    anew = run_everything(Work(tmp_path, 1, lines.append), SCOPE)
    assert len(lines) == 2 * len(results.cpu_s)
    assert csv_files(anew) == csv_files(results)


def test_the_page_and_its_figures_are_written(work: Work, results: Results, tmp_path: Path) -> None:
    """Every file that the page names is there, and the same when it is written again."""
    for folder in (tmp_path / "one", tmp_path / "two"):
        write(results, folder, MODEL)
    first = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert first == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    text = first["RESULTS.md"].decode()
    for name in first:
        assert name == "RESULTS.md" or name in text
    assert text.count(MODEL) > 10 and "{" not in text
    assert all(first[name].startswith(b"<?xml") for name in first if name.endswith(".svg"))


def test_the_committed_page_says_what_the_committed_tables_say(tmp_path: Path) -> None:
    """It leads with the gain over the best known chip; the figures are those of the tables."""
    compared, fronts = read_comparison(SPECS), read_fronts(SPECS)
    page = (SPECS / "RESULTS.md").read_text(encoding="utf-8")
    lead = answer(compared)
    assert page.split("\n\n", 1)[1].startswith(lead)
    mine = mean_relative(compared, OURS, "solve")
    better = max(mean_relative(compared, chip, "solve") for chip in BASELINES)
    alone = mean_relative(compared, ALONE, "solve")
    assert f"**{mine / better:.2f}** times" in lead and f"**{alone / mine:.1%}**" in lead
    parts = [main_table(compared, placed_by) for placed_by in PLACEMENTS]
    for part in (*parts, common_sentence(compared), front_words(fronts)):
        assert page.count(part) == 1
    assert page.count("| common, ") == 1
    for name in ("comparison.csv", "fronts.csv"):
        shutil.copy(SPECS / name, tmp_path)
    redraw(tmp_path)
    for name in ("throughput.svg", "area.svg"):
        assert (tmp_path / name).read_text() == (SPECS / name).read_text()


def test_what_is_read_back_is_what_was_written(results: Results, tmp_path: Path) -> None:
    """Comparison and fronts lose nothing that their figures need."""
    write(results, tmp_path, MODEL)
    compared, fronts = read_comparison(tmp_path), read_fronts(tmp_path)
    assert throughput_figure(compared) == throughput_figure(results)
    assert area_figure(compared, fronts) == area_figure(results, results.fronts)
    assert fronts_csv(fronts) == fronts_csv(results.fronts)


def test_a_front_is_drawn_whole_on_its_axes(results: Results) -> None:
    """Every design is a point, and axes, chips and models are named."""
    drawn = area_figure(results, results.fronts)
    designs = len(results.fronts[MODEL].designs)
    assert f"{MODEL}: {designs} designs" in drawn and "[mm²]" in drawn
    bars = throughput_figure(results)
    for words in (*CHIPS, MODEL, "on a logarithmic axis", "solved placement", "10×"):
        assert words in bars
    assert f">{COMMON}<" not in bars and f">{OURS}<" in bars


def test_a_front_that_is_out_of_order_is_found(results: Results) -> None:
    """Neither may a smaller design be faster, nor the fastest one be beyond the best."""
    front = results.fronts[MODEL]
    fast = replace(front.designs[0], throughput_samples_per_s=1e9)
    for wrong in ((fast,), (front.designs[0], front.designs[0])):
        with pytest.raises(WrongResultError, match="front"):
            check(replace(results, fronts={MODEL: replace(front, designs=wrong)}))


def test_shares_of_a_batch_add_up(results: Results) -> None:
    """What binds is the whole batch."""
    for run in results.runs:
        assert sum(shares(run).values()) == pytest.approx(1.0)


def test_the_bundle_can_be_imported(work: Work, results: Results, tmp_path: Path) -> None:
    """The study with its trials comes into another database, and its best design is ours."""
    path = bundle(work, SCOPE, MODEL)
    url = f"sqlite:///{tmp_path / 'other.db'}"
    imported = import_snapshot(read_bundle_file(path), open_storage(url, create=True))
    best = load_study(imported.name, url).best()
    assert best is not None
    assert best.metrics.value == results.ours[MODEL].value
    assert results.run(MODEL, OURS, "solve").throughput_samples_per_s == best.metrics.value
