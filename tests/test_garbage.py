import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from phaze_opt.garbage import KeptSoFar, collected_later

ROOT = Path(__file__).parents[1]


def test_the_collector_waits_and_goes_on() -> None:
    """Also after an error, inside another such block, and where it was off before."""
    assert gc.isenabled()
    with collected_later():
        assert not gc.isenabled()
        with pytest.raises(ValueError, match="stop"), collected_later():
            raise ValueError("stop")
        assert not gc.isenabled()
    assert gc.isenabled()


def left_alone_for_a_while() -> None:
    """From the moment that is said until the end, also inside another such block."""
    assert gc.get_freeze_count() == 0
    with KeptSoFar():
        assert gc.get_freeze_count() == 0
    with KeptSoFar() as kept:
        kept.begin()
        held = gc.get_freeze_count()
        assert held > 1000
        made_since: list[list[int]] = [[] for _ in range(100)]
        kept.begin()
        with KeptSoFar() as inner:
            inner.begin()
        assert 0 < gc.get_freeze_count() <= held
        assert len(made_since) == 100
    assert gc.get_freeze_count() == 0


def what_others_keep_stays_so() -> None:
    """Whoever froze it gives it back."""
    gc.freeze()
    with KeptSoFar() as kept:
        kept.begin()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()


@pytest.mark.parametrize("law", [left_alone_for_a_while, what_others_keep_stays_so])
def test_what_is_held(law: Callable[[], None]) -> None:
    """In a process of its own: all objects of this one would be looked at again and again."""
    program = f"from tests.test_garbage import {law.__name__} as law; law()"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
