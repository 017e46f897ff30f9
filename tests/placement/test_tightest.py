import numpy as np
import pytest

from phaze_opt.placement.tightest import tightest_split
from tests.placement.strategies import all_splits


@pytest.mark.parametrize("seed", range(80))
def test_equals_brute_force(seed: int) -> None:
    """The least need over all splits, the fewest stages that reach it, and the earliest ends."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 8))
    shape = count, count + 1
    resident, stash = random.choice([0.0, 1.0, 2.0, 5.0, 9.0], (2, *shape))
    held = np.append(0, np.minimum(np.arange(1, count + 1), random.integers(1, count + 1)))
    held = held[: int(random.integers(2, count + 2))]
    splits = []
    for stages in range(1, len(held)):
        for split in all_splits(count, stages):
            runs = zip(split, (*split[1:], count), strict=True)
            need = max(resident[run] + held[stages - k] * stash[run] for k, run in enumerate(runs))
            splits.append((need, stages, split))
    least = min(need for need, _, _ in splits)
    fewest = min(stages for need, stages, _ in splits if need == least)
    need_bytes, starts = tightest_split(resident, stash, held)
    assert need_bytes == least
    assert len(starts) == fewest
    ends = (*starts[1:].tolist(), count)
    runs = zip(starts.tolist(), ends, strict=True)
    own = [resident[run] + held[fewest - k] * stash[run] for k, run in enumerate(runs)]
    assert max(own) == least
