"""How fast the program is, beside how fast it was and shall be: one table.

    make bench                                             # all rows
    python -m tests.benchmarks.table evaluate-bert-large   # one row

Every row is measured in a process of its own. Times are CPU time of that process, the minimum of
several runs, but for two-workers; memory is the most that the process held.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from phaze_opt.choices import Recompute
from phaze_opt.evaluation import evaluate, evaluate_many
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.collective import collective_terms
from phaze_opt.network.presets import load_cluster
from phaze_opt.placement import candidates
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.point import Point
from phaze_opt.spec.axis_names import kind_of
from phaze_opt.spec.designs import chip_of, training_of
from phaze_opt.spec.space import numbered_point
from phaze_opt.spec.study_spec import read_spec
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import load_workload, tensor_degrees
from tests.benchmarks.test_bench_evaluate import phaze_point
from tests.benchmarks.test_bench_placement import transformer

DESIGNS, WARM = 100, 10
RUNS = 3
STUDY_FILE = Path(__file__).parents[2] / "studies" / "phaze" / "bert-large.toml"
EXPERTS_FILE = STUDY_FILE.parents[1] / "experts" / "qwen3-30b-a3b.toml"
PLACE_FILE = Path(__file__).parents[1] / "data" / "placement" / "phaze" / "004.json"

Figures = tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes
    ----------
    work
        What is measured, with the units.
    measure
        Measures it.
    before, bar
        What it was when the table was made, and what it shall be; ``None`` where nobody knows.
    peer
        What the fastest other program takes for the same, where there is one.
    """

    work: str
    measure: Callable[[], Figures]
    before: tuple[float | None, ...]
    bar: tuple[float | None, ...]
    peer: tuple[float, ...] = ()


def least_ms(work: Callable[[], Any], runs: int = RUNS) -> float:
    """Return the CPU time of the fastest of some runs after a first one, in ms."""
    work()
    return min(cpu_ms(work) for _ in range(runs))


def cpu_ms(work: Callable[[], Any]) -> float:
    """Return the CPU time of one run, in ms."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def most_mb() -> float:
    """Return the most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@cache
def captured(model: str, microbatch: int) -> Workload:
    """Load a model of the zoo."""
    return load_workload(model, tensor_parallel=tensor_degrees(model), microbatch=(microbatch,))


def designs(rng: random.Random) -> Iterator[Accelerator]:
    """Yield distinct designs of the paper's space, drawn at random."""
    limit_mm2 = load_accelerator("tpuv4-phaze").area_mm2 or 0.0
    seen = set()
    while True:
        edge = 2 ** rng.randint(1, 8)
        fields = {
            "num_tc": 2 ** rng.randint(0, 12),
            "num_vc": 2 ** rng.randint(0, 12),
            "pe_x": edge,
            "pe_y": 2 ** rng.randint(1, 8),
            "pe_vc": edge,
            "glb_mib": 2 ** rng.randint(1, 7),
            "hbm_gib": rng.choice([32, 64, 80]),
        }
        chip = load_accelerator("tpuv4-phaze", **fields)
        share = (chip.area_mm2 or 2 * limit_mm2) / limit_mm2
        enough = share >= 0.3 or 1 in (chip.num_tc, chip.num_vc)
        if share <= 1.0 and enough and chip not in seen:
            seen.add(chip)
            yield chip


def random_points(model: str, count: int) -> list[Point]:
    """Return points of the study of a model in the setting of the paper."""
    rng = random.Random(model)
    chips = designs(rng)
    points = []
    for _ in range(count):
        microbatch = 2 ** rng.randint(0, 3)
        recompute: Recompute = "full" if rng.randint(0, 1) else "none"
        training = Training(4096, microbatch, recompute, "sgd", residency=False, overlap="none")
        cluster = load_cluster("flat-4GiB", 1024)
        points.append(Point(captured(model, microbatch), next(chips), cluster, training))
    return points


def points_of_study(path: Path, count: int) -> list[Point]:
    """Return points of random designs of a study, each with one of the options that it solves."""
    spec = read_spec(path)
    rng, base = random.Random(path.stem), load_accelerator("tpuv4-lanes")
    assert spec.model is not None
    workload = captured(spec.model, 1)
    cluster, limit_mm2 = load_cluster(spec.cluster, spec.devices), base.area_mm2 or 0.0
    points: dict[Accelerator, Point] = {}
    while len(points) < count:
        values = numbered_point(spec.space, rng.randrange(spec.space.points)).by_name
        options = {name: own for name, own in values.items() if kind_of(name) == "training"}
        options |= rng.choice(spec.space.solved_options())
        training = training_of({**spec.training_values, **options}, spec.global_batch)
        chip = chip_of(base, values)
        if (chip.area_mm2 or 2 * limit_mm2) <= limit_mm2:
            points.setdefault(chip, Point(workload, chip, cluster, training))
    return list(points.values())


def evaluate_point(point: Point) -> Any:
    """Evaluate a point by itself."""
    return evaluate(point.workload, point.accelerator, point.cluster, point.training)


def alone(model: str) -> Figures:
    """Evaluate random designs one by one."""
    return one_by_one(random_points(model, WARM + DESIGNS))


def one_by_one(points: list[Point]) -> Figures:
    """Evaluate points one by one, the first ones to warm up."""
    for point in points[:WARM]:
        evaluate_point(point)
    rounds = [[cpu_ms(partial(evaluate_point, p)) for p in points[WARM:]] for _ in range(RUNS)]
    times_ms = [min(each) for each in zip(*rounds, strict=True)]
    return statistics.median(times_ms), statistics.mean(times_ms)


def tiles_over_whole(model: str) -> Figures:
    """Return how many times as long random designs take with tiles as with whole tensors.

    Both in turns, so that what else the machine does falls on both.
    """
    pairs = [
        [replace(p, training=replace(p.training, residency=choice)) for choice in (True, "tiles")]
        for p in random_points(model, WARM + DESIGNS // 2)
    ]
    times_ms: dict[Point, list[float]] = {point: [] for pair in pairs for point in pair}
    for run in range(1 + RUNS):
        for pair in pairs:
            for point in pair if run % 2 else reversed(pair):
                times_ms[point].append(cpu_ms(partial(evaluate_point, point)))
    # The first run finds what all designs share.
    least_ms = [[min(times_ms[point][1:]) for point in pair] for pair in pairs]
    whole_ms, tiled_ms = zip(*least_ms, strict=True)
    medians = statistics.median(tiled_ms) / statistics.median(whole_ms)
    return medians, statistics.mean(tiled_ms) / statistics.mean(whole_ms)


def bulk(model: str) -> Figures:
    """Evaluate the same designs in one call."""
    points = random_points(model, WARM + DESIGNS)[WARM:]
    return (least_ms(partial(evaluate_many, points)) / DESIGNS,)


def infeasible() -> Figures:
    """Evaluate random designs with too little memory for the model."""
    points = random_points("gpt3-175b", 20)
    small = [replace(p, accelerator=replace(p.accelerator, hbm_bytes=2**28)) for p in points]
    return (least_ms(lambda: [evaluate_point(point) for point in small]) / len(small),)


def given() -> Figures:
    """Evaluate a given placement on a GPU."""
    workload = load_workload("gpt3-175b", tensor_parallel=(8,), microbatch=(1,))
    chip, cluster = load_accelerator("a100-80"), load_cluster("dgx-a100", 1024)
    training = Training(1536, 1, "full", "adam")
    return (least_ms(lambda: evaluate(workload, chip, cluster, training, (8, 16, 8)), 40),)


def million(model: str) -> Figures:
    """Place a good design on a million devices, with tables of degrees found anew."""
    point = phaze_point(model, 10**6, 10**6)

    def anew() -> None:
        candidates._grids.cache_clear()
        collective_terms.cache_clear()
        evaluate(*point)

    return least_ms(anew) / 1e3, most_mb()


def chain() -> Figures:
    """Place a chain of a thousand layers."""
    problem = transformer(1000, True, 400e9)
    return least_ms(lambda: solve_placement(problem)) / 1e3, most_mb()


def command(*arguments: str) -> Figures:
    """Run a Python process, and return its CPU time in seconds."""

    def run() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    run()
    return (min(run() for _ in range(RUNS)),)


def cached_trials(trials: int = 100) -> Figures:
    """Run trials whose evaluations are all stored, and return how many come per second."""
    from phaze_opt.spec.study_spec import SearchSpec
    from phaze_opt.study.study import create_study
    from tests.study.fakes import TOY, toy_spec, toy_study

    search = SearchSpec("random", trials, 1)
    with tempfile.TemporaryDirectory() as folder:
        study = toy_study(f"sqlite:///{Path(folder) / 'a.db'}", search=search)
        study.run()
        again = [
            create_study(toy_spec(search=search), study.storage, name=f"copy{i}", workload=TOY)
            for i in range(RUNS)
        ]
        return (trials / min(cpu_ms(copy.run) / 1e3 for copy in again),)


def two_workers(trials: int = 1600) -> Figures:
    """Return how many times as many trials per second two worker processes finish as one.

    At points that nobody has evaluated, by the clock, so on a quiet machine only. The start of the
    workers, until a tenth of the trials is complete, and the end of the run are left out.
    """
    text = STUDY_FILE.read_text("utf-8")
    assert text.count('sampler = "bound"') == 1

    def trials_per_s(workers: int) -> float:
        from phaze_opt.store.opening import open_storage
        from phaze_opt.store.stored_study import find_study

        with tempfile.TemporaryDirectory() as folder:
            spec = Path(folder) / "spec.toml"
            spec.write_text(text.replace('sampler = "bound"', 'sampler = "random"'), "utf-8")
            call = [sys.executable, *COMMAND, "study"]
            url = f"sqlite:///{Path(folder) / 'a.db'}"
            quiet = partial(subprocess.run, check=True, stdout=subprocess.DEVNULL)
            quiet([*call, "create", str(spec), "--name", "two", "--storage", url])
            numbers = ["--trials", str(trials), "--workers", str(workers)]
            quiet([*call, "run", "two", *numbers, "--storage", url])
            found = find_study("two", open_storage(url)).optuna_study.get_trials(deepcopy=False)
            ends = sorted(each.datetime_complete for each in found if each.datetime_complete)
            counted = ends[len(ends) // 10 :]
            return (len(counted) - 1) / (counted[-1] - counted[0]).total_seconds()

    return (trials_per_s(2) / trials_per_s(1),)


COMMAND = ("-c", "from phaze_opt.cli.main import run; run()")
POINT = ("--cluster", "flat-4GiB", "--devices", "8", "--global-batch", "8", "--microbatch", "1")
EVALUATE = ("evaluate", "--model", "bert-large", "--accelerator", "tpuv4-lanes", *POINT)

ROWS = {
    "evaluate-bert-large": Row(
        "random design, median, mean / ms", partial(alone, "bert-large"), (13, 15), (5, 5)
    ),
    "evaluate-gpt3-175b": Row(
        "random design, median, mean / ms", partial(alone, "gpt3-175b"), (19, 25), (5, 7)
    ),
    "evaluate-llama2-7b": Row(
        "random design, median, mean / ms", partial(alone, "llama2-7b"), (16, 138), (5, 10)
    ),
    "evaluate-qwen3-30b-a3b": Row(
        "random design, median, mean / ms",
        lambda: one_by_one(points_of_study(EXPERTS_FILE, WARM + DESIGNS)),
        (17, 30),
        (10, None),
    ),
    "tiles-bert-large": Row(
        "residency by tiles over whole tensors, median, mean",
        partial(tiles_over_whole, "bert-large"),
        (1.19, 1.23),
        (1.15, 1.15),
    ),
    "tiles-gpt3-175b": Row(
        "residency by tiles over whole tensors, median, mean",
        partial(tiles_over_whole, "gpt3-175b"),
        (None, None),
        (1.15, 1.15),
    ),
    "bulk-bert-large": Row(
        "the same in bulk, mean / ms", partial(bulk, "bert-large"), (None,), (2,)
    ),
    "bulk-gpt3-175b": Row("the same in bulk, mean / ms", partial(bulk, "gpt3-175b"), (None,), (3,)),
    "bulk-llama2-7b": Row("the same in bulk, mean / ms", partial(bulk, "llama2-7b"), (None,), (8,)),
    "infeasible-gpt3-175b": Row("too little memory / ms", infeasible, (None,), (None,)),
    "given-gpt3-175b": Row("8x16x8 on a100-80 / ms", given, (5.2,), (1.5,), (1.6,)),
    "million-bert-large": Row(
        "10^6 devices / s, MB", partial(million, "bert-large"), (31.6, 930), (0.5, 300)
    ),
    "million-gpt3-175b": Row(
        "10^6 devices / s, MB", partial(million, "gpt3-175b"), (6.7, 1400), (0.5, 300)
    ),
    "chain-1000": Row("1,000 layers, 1,024 devices / s, MB", chain, (2.8, 1000), (0.5, 300)),
    "import-evaluation": Row(
        "import phaze_opt.evaluation / s",
        partial(command, "-c", "import phaze_opt.evaluation"),
        (0.84,),
        (0.5,),
    ),
    "command-place": Row(
        "place a small file / s",
        partial(command, *COMMAND, "place", str(PLACE_FILE), "--format", "phaze"),
        (0.9,),
        (0.5,),
    ),
    "command-evaluate": Row(
        "evaluate, warm / s", partial(command, *COMMAND, *EVALUATE), (1.25,), (0.7,)
    ),
    "cached-trials": Row("stored points, random / trials per s", cached_trials, (29,), (25,)),
    "two-workers": Row("new points per second, two over one", two_workers, (1,), (1.7,)),
}
"""The rows, by the name that measures one of them."""


def shown(figures: Sequence[float | None]) -> str:
    """Write the figures of a cell."""
    return ", ".join(
        "-" if one is None else f"{one:.3g}" if one < 1e3 else f"{one:.0f}" for one in figures
    )


def main(arguments: Sequence[str]) -> None:
    """Measure some rows in this process, or all of them in processes of their own."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.table",
        description=main.__doc__,
        epilog="Rows: " + ", ".join(ROWS) + ".",
    )
    parser.add_argument("row", nargs="*", help="row to measure; without any: all")
    names = parser.parse_args(arguments).row
    if unknown := sorted(set(names) - set(ROWS)):
        parser.error(f"there is no row {unknown[0]!r}; there are: {', '.join(ROWS)}")
    if names:
        for name in names:
            print(json.dumps(ROWS[name].measure()))
        return
    print(f"{'row':21} {'what':36} {'now':>11} {'was':>11} {'bar':>8} {'peer':>4}")
    for name, row in ROWS.items():
        call = [sys.executable, "-m", "tests.benchmarks.table", name]
        done = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True)
        now = json.loads(done.stdout.splitlines()[-1])
        cells = f"{shown(now):>11} {shown(row.before):>11} {shown(row.bar):>8} {shown(row.peer):>4}"
        print(f"{name:21} {row.work:36} {cells}", flush=True)
    print("One row: python -m tests.benchmarks.table ROW")


if __name__ == "__main__":
    main(sys.argv[1:])
