"""What was found in the configuration of a training framework."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from phaze_opt.degrees import Degrees

FrameworkName = Literal["megatron", "torchtitan", "maxtext"]

_WANTED = ("model", "accelerator", "cluster", "devices", "global_batch", "microbatch")
_DEGREES = ("pipeline", "data", "tensor", "expert_parallel", "context_parallel")
_SWITCHES = {"true": "--{}", "false": "--no-{}"}


@dataclass(frozen=True)
class ImportedConfig:
    """A run as the configuration of a framework states it.

    Attributes
    ----------
    framework
        Whose configuration it is.
    row
        Columns of ``phaze-opt validate training --csv``, as far as they are stated.
    ignored
        What is known and changes no number here.
    unknown
        What is not known, or cannot be expressed, in words.
    """

    framework: FrameworkName
    row: Mapping[str, str]
    ignored: tuple[str, ...] = field(default=())
    unknown: tuple[str, ...] = field(default=())

    @property
    def missing(self) -> tuple[str, ...]:
        """What an evaluation needs and the configuration does not state."""
        return tuple(name for name in _WANTED if not self.row.get(name))

    @property
    def command(self) -> str:
        """The command line that evaluates the run; what is missing stands in capitals."""
        words = ["phaze-opt", "evaluate"]
        words += [
            part for name in _WANTED for part in (_option(name), self.row.get(name) or name.upper())
        ]
        words += ["--placement", self._placement]
        for name, text in self.row.items():
            if name in (*_WANTED, *_DEGREES) or not text:
                continue
            if text in _SWITCHES:
                words.append(_SWITCHES[text].format(name.replace("_", "-")))
            else:
                words += [_option(name), text]
        return shlex.join(words)

    @property
    def _placement(self) -> str:
        """The degrees as text; the number of replicas stands in capitals where it is not known."""
        whole = {name: int(self.row.get(name) or 1) for name in _DEGREES}
        shared = whole["pipeline"] * whole["tensor"] * whole["context_parallel"]
        known = "data" in self.row
        if not known and "devices" in self.row:
            whole["data"], left = divmod(int(self.row["devices"]), shared)
            known = left == 0 and whole["data"] > 0
        three = whole["pipeline"], max(1, whole["data"]), whole["tensor"]
        text = Degrees(
            *three, expert=whole["expert_parallel"], context=whole["context_parallel"]
        ).text
        if known:
            return text
        stages, _, rest = text.split("x", 2)
        return f"{stages}xDATAx{rest}"


def _option(name: str) -> str:
    """Return a column as an option of the command line."""
    return "--" + name.replace("_", "-")
