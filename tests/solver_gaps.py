"""Gaps and seconds of the solvers: ``python -m tests.solver_gaps``, about three minutes.

Latency of the published workloads that the tests hold; contiguous splits of parallel tracks;
schedules of wide graphs with every method.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import product

from phaze_opt.compiled import load_all
from phaze_opt.partitioning.dag import DeviceAssignment, split_contiguous
from phaze_opt.partitioning.dnn_format import read_dnn_partitioning
from phaze_opt.partitioning.integer_program import least_latency
from phaze_opt.partitioning.unit_graph import build_unit_graph
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.partitioning.parallel_tracks import tracks
from tests.partitioning.test_latency_search import DATA, operators_of_bert
from tests.scheduling.strategies import layer_like


def _print_gap(what: str, solve: Callable[[], DeviceAssignment | Schedule]) -> None:
    """Print what was solved, how far it is proven, and the processor time."""
    began = time.process_time()
    answer = solve()
    seconds = time.process_time() - began
    print(
        f"{what:48} {answer.status:9} gap {100 * answer.gap:5.1f} %  {seconds:6.1f} s", flush=True
    )


def main() -> None:
    """Solve everything."""
    load_all()
    name = "latency-layers-bert24_inference.json"
    published = read_dnn_partitioning((DATA / name).read_bytes(), name)
    _print_gap(f"latency, {name}", partial(least_latency, published))
    _print_gap("latency, operators of bert_l-3", partial(least_latency, operators_of_bert()))
    for count, crossing, costs in product((3, 4), (0.0, 0.1), ((0.01, 0.5), (0.5, 4.0))):
        graph = build_unit_graph(tracks(1, count, 200, crossing, costs))
        what = f"{count} tracks, {crossing:.0%} crossing, transfers {costs}"
        _print_gap(what, partial(split_contiguous, graph))
    for size, seed in (*product((100, 200), (1, 2, 3)), (200, 6), (1000, 2)):
        problem = layer_like(seed, size, 8)
        _print_gap(f"schedule, {problem.name}", partial(solve_schedule, problem, method="auto"))


if __name__ == "__main__":
    main()
