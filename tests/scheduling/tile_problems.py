"""Joint problems with operators that may run tile by tile, drawn at random."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from phaze_opt.scheduling.residency import Residency
from phaze_opt.scheduling.schedule_problem import HeldInput
from phaze_opt.scheduling.tile_search import least_of_prices
from phaze_opt.scheduling.tiles import TileGraph, TilePrices, Tiling
from tests.scheduling.residency_problems import random_residency


def random_tiled(rng: random.Random, operators: int = 7, tensors: int = 4) -> Residency:
    """Draw a problem of any shape with at most so many operators and tensors."""
    whole = random_residency(rng, operators, tensors)
    graph = whole.graph
    shared = rng.choice([(2, 4), (2,), (3, 6), (4,)])
    counts = tuple(rng.choice([shared, shared, shared[:1], ()]) for _ in range(graph.operators))
    likely = rng.choice([0.5, 1.0, 1.0])
    through = frozenset(edge for edge in graph.edges if rng.random() < likely)
    can = [i for i in range(graph.operators) if counts[i]]
    # Of what is held some moves less than it needs room, as a sum in fp32 of a gradient in bf16.
    sizes = [(rng.choice(can), rng.choice([1, 3, 8])) for _ in can[:2]]
    held = tuple(HeldInput(one, size, size - size // 2) for one, size in sizes)
    tiles = TileGraph(graph, counts, through, held)
    levels = rng.randint(1, 2)
    saved = np.zeros((len(tiles.accesses), levels))
    hbm = np.array([[rng.choice([0.0, 1.0, 4.0])] * levels for _ in tiles.rows]).reshape(-1, levels)
    for number, (row, i) in enumerate(tiles.accesses):
        for level in range(levels):
            if i < len(graph.tensors):
                size, again = graph.tensors[i].bytes, rng.choice([1, 1, 2])
            else:
                size = held[i - len(graph.tensors)].bytes
                again = tiles.rows[row].tiles
            saved[number, level] = size * again
            hbm[row, level] += size * again
    shape = hbm.shape
    draws = [
        float(whole.other_s[row.operator, 0]) * rng.choice([0.5, 1.0, 1.0, 1.2])
        for row in tiles.rows
        for _ in range(levels)
    ]
    working = [rng.choice([0, 1, 2, 4]) for _ in range(hbm.size)]
    prices = TilePrices(
        np.array(working, dtype=np.int64).reshape(shape), hbm, np.array(draws).reshape(shape), saved
    )
    tiling = Tiling(tiles, least_of_prices(whole, tiles, prices), lambda: prices)
    return replace(whole, tiling=tiling, glb_bytes=rng.randint(4, 20))
