"""The options of ``phaze-opt evaluate`` that say what is wrong with a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from phaze_opt.checked import shown
from phaze_opt.errors import InputError, unknown_name

if TYPE_CHECKING:
    from phaze_opt.degraded import Degradation

DegradeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Also say what is left with slow-device=0.8 (speed of one device), link=0.5 or link.0="
        "0.5 (bandwidth of one device's links, at the outermost level in use or at that one), "
        "lost-node=1 (nodes that are gone). Repeat for more.",
        show_default=False,
    ),
]

SpareNodesOption = Annotated[
    int, typer.Option(help="Nodes that stand by, to take the place of lost or degraded ones.")
]

_KINDS = ("slow-device", "link", "link.LEVEL", "lost-node")


def read_degradation(texts: list[str] | None, spare_nodes: int = 0) -> Degradation | None:
    """Read ``slow-device=0.8``, ``link=0.5`` or ``link.0=0.5``, and ``lost-node=1``.

    Parameters
    ----------
    texts
        What is wrong; ``None`` where nothing is.
    spare_nodes
        See `phaze_opt.degraded.Degradation`.

    Raises
    ------
    InputError
        If a text is none of these, or says again what another one says, or there are spare nodes
        although nothing is wrong.
    """
    from phaze_opt.degraded import Degradation

    if not texts:
        if spare_nodes:
            raise InputError(
                f"--spare-nodes is {spare_nodes}, but nothing is degraded; give --degrade, for "
                "example --degrade lost-node=1."
            )
        return None
    values: dict[str, Any] = {"spare_nodes": spare_nodes}
    for text in texts:
        name, separator, number = text.partition("=")
        kind, _, level = name.partition(".")
        if not separator or kind not in _KINDS or (level and kind != "link"):
            raise unknown_name("degradation", name, [f"{each}=VALUE" for each in _KINDS])
        field = {"slow-device": "slow_device", "lost-node": "lost_nodes"}.get(kind, kind)
        if field in values:
            raise InputError(f"--degrade states {kind} twice; state it once.")
        values[field] = _number(f"--degrade {name}", number, whole=kind == "lost-node")
        if level:
            values["link_level"] = int(_number("the level of --degrade link", level, whole=True))
    return Degradation(**values)


def _number(name: str, text: str, *, whole: bool) -> float:
    """Read a number that is given as text."""
    try:
        return int(text) if whole else float(text)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise InputError(f"{name} is {shown(text)}, but it must be {kind}.") from None
