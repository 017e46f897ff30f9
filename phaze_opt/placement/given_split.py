"""Splits that people state: how many layers each stage of a pipeline holds.

What is counted are the repeated layers (transformer blocks), as people count them: what stands
before and after them (embedding, head) is on the first and the last stage beside theirs. Or all
layers are counted, as Megatron-LM does with ``--account-for-embedding-in-pipeline-split`` and
``--account-for-loss-in-pipeline-split``; the sum of the numbers says which.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.errors import InputError


def given_starts(sizes: Sequence[int], names: Sequence[str], stages: int) -> IntArray:
    """Return the first layer of every stage.

    Parameters
    ----------
    sizes
        Of the stages, from the first to the last.
    names
        Of all layers; repeated ones end in a dot and a number.
    stages
        The pipeline degree.

    Raises
    ------
    InputError
        If there are not so many sizes, they do not add up, or a stage has no layer.
    """
    text = ",".join(map(str, sizes))
    if len(sizes) != stages:
        raise InputError(
            f"stages is {text}, which are {len(sizes)} stages, but the placement has {stages}."
        )
    repeated = [i for i, name in enumerate(names) if name.rpartition(".")[2].isdecimal()]
    own = np.array(sizes, dtype=np.int64)
    total = int(own.sum())
    if total == len(repeated) < len(names):
        own[0] += repeated[0]
        own[-1] += len(names) - 1 - repeated[-1]
        total = int(own.sum())
    if total != len(names):
        raise InputError(
            f"stages is {text}, which adds up to {sum(sizes)}, but the model has {len(repeated)} "
            f"repeated layers, and {len(names)} with what stands before and after them; the "
            "numbers must add up to either."
        )
    if own.min() < 1:
        raise InputError(f"stages is {text}, but every stage must hold at least one layer.")
    starts: IntArray = np.cumsum(own) - own
    return starts
