"""The tables of the page, by part of the questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from phaze_opt.report.words import kind_words
from phaze_opt.spec.axes import Scalar
from phaze_opt.units import format_number
from studies.atlas.answers import Answer, Common
from studies.atlas.markdown import table
from studies.atlas.ratios import (
    base_of,
    chip_words,
    is_optimum,
    proof_words,
    relative_words,
    times_base,
)

PICTURE = "atlas.svg"
Columns = Mapping[str, Callable[[Answer], str]]
"""Cells of a table by the names of its columns."""

_LEAST_SHARE = 0.01


def _models(part: Sequence[Answer], _: Sequence[Answer]) -> Iterator[str]:
    """Yield the winners, and the known chips beside them."""
    yield "## The best chip for each model"
    yield ""
    yield (
        "A gap stands beside what is not certified. MFU counts attention in full, as is usual, of "
        "which a causal mask leaves half: with many tokens per sample it may exceed 100 %."
    )
    yield ""
    columns: Columns = {
        "model": _words,
        "samples/s": _speed,
        "MFU": _mfu,
        "mm²": _area,
        "TC": lambda each: "{num_tc} × {pe_x}×{pe_y}".format(**each.proven.values),
        "VC": lambda each: "{num_vc} × {pe_vc}".format(**each.proven.values),
        "GLB MiB": lambda each: _value(each, "glb_mib"),
        "HBM GiB": lambda each: _value(each, "hbm_gib"),
        "placement": _placement,
    }
    yield from _table(part, columns)
    yield ""
    yield f"![Known chips, and where the time of the winners goes]({PICTURE})"
    yield ""
    yield "Where its time goes, in percent of a batch:"
    yield ""
    for answer in part:
        yield f"- {answer.question.words}: {_time(answer.proven.trained.shares or {})}"
    yield ""
    yield "## Known chips on the same question"
    yield ""
    yield (
        "Throughput relative to the best that was found. All have the network of the question; the "
        "area is that of the area model, in which the H100 is the limit, so that larger chips may "
        "be above 1."
    )
    yield ""
    yield from _beside(part)


def _beside(part: Sequence[Answer]) -> Iterator[str]:
    """Yield the table of known chips beside winners."""
    beside = [answer for answer in part if answer.known]
    shown = [
        f"{chip.chip} ({'no area' if chip.area_mm2 is None else f'{chip.area_mm2:,.0f} mm²'})"
        for chip in beside[0].known
    ]
    rows = (
        [answer.question.words, *(relative_words(known, answer) for known in answer.known)]
        for answer in beside
    )
    yield from table(["model", *shown], rows)


def common_lines(common: Sequence[Common], models: Sequence[Answer]) -> Iterator[str]:
    """Yield one chip for all dense models, and one for all with experts."""
    yield "## One chip for many models"
    yield ""
    yield (
        "The chip whose geometric mean over some models, of throughput over the H100's, is the "
        "highest of its space:"
    )
    yield ""
    for each in common:
        winner = each.winner
        yield (
            f"- for {', '.join(each.models)}: {winner.value:.3f}, {winner.status} among "
            f"{winner.points:,}: {chip_words(winner.values)}, {winner.area_mm2:,.0f} mm²"
        )
    yield ""
    yield (
        "Every model on each of them, at the best of its own options, relative to the certified "
        "optimum of its own chip, than which no common chip is better:"
    )
    yield ""
    shares = zip(*(each.trained for each in common), strict=True)
    rows = (
        [own.question.words, *(relative_words(trained, own) for trained in on_each)]
        for own, on_each in zip(models, shares, strict=True)
    )
    yield from table(["model", *(f"chip for {len(each.models)}" for each in common)], rows)


def _dollars(part: Sequence[Answer], _: Sequence[Answer]) -> Iterator[str]:
    """Yield winners for equal dollars."""
    yield "## For what 1,024 H100 cost"
    yield ""
    yield (
        "At most 43 million US dollars for chips, hosts, network and five years of electricity, "
        "every chip at seven times what it costs to make. How many there are is searched; a chip "
        "has at most 2,000 mm². Known chips are as many as that buys, with their own dies."
    )
    yield ""
    yield from _paid(part)


def _watts(part: Sequence[Answer], _: Sequence[Answer]) -> Iterator[str]:
    """Yield winners for equal watts."""
    yield "## With the watts of 1,024 H100"
    yield ""
    yield (
        "1,024 chips of at most 2,000 mm², 32 of them in a rack that draws at most 32 kW at the "
        "wall with hosts and network: about what H100s do. Known chips that draw more do not fit."
    )
    yield ""
    yield from _paid(part)


def _paid(part: Sequence[Answer]) -> Iterator[str]:
    """Yield the tables of winners within a budget, and of known chips beside them."""
    columns: Columns = {
        "model": _words,
        "samples/s": _speed,
        "MFU": _mfu,
        "chips": lambda each: f"{each.proven.trained.devices:,}",
        "million USD": lambda each: f"{each.proven.trained.tco_usd / 1e6:.1f}",
        "W each": lambda each: f"{each.proven.trained.wall_power_w:,.0f}",
        "mm²": _area,
        "chip": _chip,
        "bits": lambda each: _value(each, "precision") or "bf16",
    }
    yield from _table(part, columns)
    yield ""
    yield "Known chips within the same budget, relative to the best that was found in bf16:"
    yield ""
    yield from _beside(part)


def _network(part: Sequence[Answer], answers: Sequence[Answer]) -> Iterator[str]:
    """Yield what the network, searched with the chip, brings."""
    yield "## Chip and network together"
    yield ""
    yield (
        "The PHYs of all links count as area of the chip, within that of an H100 with the links of "
        "its nodes. Fixed, the network is that of H100 nodes; then the devices per scale-up "
        "domain, their links and the bandwidth between domains are searched."
    )
    yield ""
    columns: Columns = {
        "question": _words,
        "samples/s": _speed,
        "× the answer above": lambda each: f"{times_base(each, answers):.3f}",
        "chip": _chip,
        "network": lambda each: _network_words(each.proven.values),
        "placement": _placement,
    }
    yield from _table(part, columns)


def _network_words(values: Mapping[str, Scalar]) -> str:
    """Return the searched network of a design in a few words."""
    axes = ("network.0.group_size", "network.0.links", "network.1.bandwidth_gb_per_s")
    if axes[0] not in values:
        return "as of the question"
    return "{} per domain, {} links each, {} GB/s between".format(*(values[axis] for axis in axes))


def _bits(part: Sequence[Answer], answers: Sequence[Answer]) -> Iterator[str]:
    """Yield what fewer bits bring."""
    yield "## Eight and four bits"
    yield ""
    yield "The precision and the multipliers of fewer bits are searched, within the same area."
    yield ""
    columns: Columns = {
        "model": _words,
        "samples/s": _speed,
        "× bf16": lambda each: f"{times_base(each, answers):.3f}",
        "precision": lambda each: _value(each, "precision"),
        "fp8 per bf16": lambda each: _value(each, "fp8_ratio"),
        "fp4 per bf16": lambda each: _value(each, "fp4_ratio"),
        "mm²": _area,
    }
    yield from _table(part, columns)


def _devices(part: Sequence[Answer], answers: Sequence[Answer]) -> Iterator[str]:
    """Yield winners by the number of devices."""
    yield "## More and fewer devices"
    yield ""
    yield "The global batch grows with them. Samples per second and device stand against 1,024."
    yield ""
    columns: Columns = {
        "question": _words,
        "samples/s": _speed,
        "× for each device": lambda each: (
            f"{times_base(each, answers) * _fewer_devices(each, answers):.3f}"
        ),
        "MFU": _mfu,
        "chip": _chip,
        "placement": _placement,
    }
    yield from _table(part, columns)


def _variants(part: Sequence[Answer], answers: Sequence[Answer]) -> Iterator[str]:
    """Yield what one thing less, or more, costs when the chip is searched again."""
    yield "## One thing otherwise"
    yield ""
    yield "The chip and the placement are searched again for every row."
    yield ""
    columns: Columns = {
        "question": _words,
        "samples/s": _speed,
        "× the answer above": lambda each: f"{times_base(each, answers):.3f}",
        "chip": _chip,
        "placement": _placement,
    }
    yield from _table(part, columns)


PARTS = {
    "models": _models,
    "bits": _bits,
    "dollars": _dollars,
    "watts": _watts,
    "network": _network,
    "devices": _devices,
    "variants": _variants,
}


def _table(part: Sequence[Answer], columns: Columns) -> Iterator[str]:
    """Yield a table with a row for every answer."""
    yield from table(tuple(columns), ([cell(each) for cell in columns.values()] for each in part))


def _words(answer: Answer) -> str:
    return answer.question.words


def _speed(answer: Answer) -> str:
    """Return samples per second, with the gap of what is not certified."""
    gap = "" if is_optimum(answer) else f" ({proof_words(answer)})"
    return f"{format_number(answer.proven.trained.samples_per_s)}{gap}"


def _mfu(answer: Answer) -> str:
    return f"{answer.proven.trained.mfu:.1%}"


def _area(answer: Answer) -> str:
    return f"{answer.proven.trained.area_mm2:,.0f}"


def _chip(answer: Answer) -> str:
    return chip_words(answer.proven.values)


def _placement(answer: Answer) -> str:
    return answer.proven.trained.placement


def _value(answer: Answer, axis: str) -> str:
    """Return the value on an axis; empty where the space has no such axis."""
    return str(answer.proven.values.get(axis, ""))


def _time(shares: Mapping[str, float]) -> str:
    """Return where the time goes, the largest part first."""
    parts = sorted(shares.items(), key=lambda part: -part[1])
    return ", ".join(
        f"{kind_words(kind)} {share:.0%}" for kind, share in parts if share >= _LEAST_SHARE
    )


def _fewer_devices(answer: Answer, answers: Sequence[Answer]) -> float:
    """Return how many times as many devices the base has."""
    return base_of(answer, answers).question.spec.devices / answer.question.spec.devices
