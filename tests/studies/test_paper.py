"""The experiments of the paper, small: what must hold, and that they come out the same again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from phaze_opt.search.sharing import import_snapshot, read_bundle_file
from phaze_opt.search.store.storage import open_storage
from phaze_opt.search.study import load_study
from studies.paper.__main__ import bundle, write
from studies.paper.binding import shares
from studies.paper.checks import WrongResultError, check
from studies.paper.experiments import OURS, Results, run_everything
from studies.paper.settings import Scope
from studies.paper.tables import csv_files
from studies.paper.work import Work

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
        "pe_vc": [128, 1024],
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
    assert all(one.throughput_samples_per_s > 0.0 for one in results.placed)
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
    one = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert one == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    text = one["RESULTS.md"].decode()
    for name in one:
        assert name == "RESULTS.md" or name in text
    assert text.count(MODEL) > 10 and "{" not in text
    assert all(one[name].startswith(b"<?xml") for name in one if name.endswith(".svg"))


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
