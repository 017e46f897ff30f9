"""What is wrong with a cluster, as the command line says it."""

from __future__ import annotations

import pytest
from phaze_opt.cli.degrade_option import read_degradation

from phaze_opt.degraded import Degradation
from phaze_opt.errors import InputError


def test_every_kind_is_read() -> None:
    """Together or none of them; spare nodes only where something is wrong."""
    assert read_degradation(None) is None
    texts = ["slow-device=0.8", "link.0=0.5", "lost-node=2"]
    assert read_degradation(texts, 1) == Degradation(0.8, 0.5, 0, 2, 1)
    assert read_degradation(["link=0.5"]) == Degradation(link=0.5)
    with pytest.raises(InputError, match="--spare-nodes is 2, but nothing is degraded"):
        read_degradation([], 2)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["slow-device=0"], "slow_device is 0, but it must be in (0, 1]."),
        (["link=nan"], "link is nan"),
        (["lost-node=1.5"], "--degrade lost-node is '1.5', but it must be a whole number."),
        (["lost-node=-1"], "lost_nodes is -1"),
        (["slow=0.5"], "Unknown degradation 'slow'. Allowed: link.LEVEL=VALUE, link=VALUE"),
        (["slow-device"], "Unknown degradation 'slow-device'."),
        (["link=0.5", "link.0=0.5"], "--degrade states link twice"),
        (["link.x=0.5"], "the level of --degrade link is 'x'"),
    ],
)
def test_texts_that_are_none(texts: list[str], words: str) -> None:
    """One clear sentence."""
    with pytest.raises(InputError) as refused:
        read_degradation(texts)
    assert words in str(refused.value)
