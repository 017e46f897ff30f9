"""Every network preset, from one device to as many as it joins or a million."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

from phaze_opt.network.presets import cluster_presets
from tests.torture.answering import Answer, ask, in_folder, why_wrong
from tests.torture.case import Case, Outcome, Setting

_MODELS = ("bert-large", "gpt3-175b", "llama2-7b")
_MOST_DEVICES = 10**6
_MOST_SHARING = 1000
"""With ZeRO every number of replicas is a candidate by itself: so many devices answer in seconds,
many more take minutes and gigabytes until they are so many that they are refused."""


def run(setting: Setting) -> Iterator[Outcome]:
    """Place a model on a network of some size: in time and memory, or with a sentence."""
    with in_folder(setting.folder):
        for number in setting.numbers():
            line, devices = _line(setting.random(number), number)
            answer = ask(line)
            outcome = why_wrong(answer) or _why_too_large(answer, devices)
            yield None if outcome is None else f"{line!r}: {outcome}"


def _line(random: Random, number: int) -> tuple[list[str], int]:
    """Draw a line; the presets come one after the other."""
    presets = cluster_presets()
    name = list(presets)[number % len(presets)]
    most = int(min(_MOST_DEVICES, presets[name].reach))
    zero = random.choice("000013")
    sizes = (1, 7, 64, 1000, 4096, 99_999, _MOST_DEVICES)
    allowed = [size for size in (*sizes, most) if size <= most]
    if zero != "0":
        allowed = [size for size in allowed if size <= _MOST_SHARING]
    devices = random.choice(allowed)
    options = {
        "--model": random.choice(_MODELS),
        "--accelerator": random.choice(("a100-80", "tpuv4-lanes")),
        "--cluster": name,
        "--devices": str(devices),
        "--global-batch": str(max(1, round(devices * random.choice((0.1, 1, 4))))),
        "--microbatch": "1",
        "--zero": zero,
        "--recompute": random.choice(("none", "full")),
        "--overlap": random.choice(("none", "data", "all")),
    }
    return ["evaluate", "--json", *(part for pair in options.items() for part in pair)], devices


def _why_too_large(answer: Answer, devices: int) -> Outcome:
    """Say why an answer uses more than there is, or why a refusal does not name a size."""
    if answer.code == 2 and " GB of memory" not in answer.sentence:
        return f"no size: {answer.sentence[:200]!r}"
    placement = json.loads(answer.out)["placement"] if answer.code == 0 else None
    if placement is not None:
        used = placement["pipeline"] * placement["data"] * placement["tensor"]
        if used > devices:
            return f"{used} of {devices} devices"
    return None


CASE = Case("sizes", "networks of all sizes", 100, 12, 0.06, run)
