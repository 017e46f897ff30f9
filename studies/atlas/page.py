"""The page of the atlas: what a reader asks first comes first, and every figure is an answer's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from phaze_opt.evaluation import COST_MODEL_VERSION
from phaze_opt.report.words import kind_words
from phaze_opt.spec.axes import Scalar
from phaze_opt.units import format_number
from studies.atlas.answers import Answer, Common, Trained
from studies.atlas.believable import believed_lines, believed_summary
from studies.atlas.markdown import table as _table
from studies.atlas.robustness import robust_lines

_LEAST_SHARE = 0.01
_CHIP = ("num_tc", "pe_x", "pe_y", "num_vc", "pe_vc", "glb_mib", "hbm_gib")


def page(answers: Sequence[Answer], common: Sequence[Common] = ()) -> str:
    """Return the page.

    Parameters
    ----------
    answers
        In the order of the questions.
    common
        Chips for many models; none where that is not asked.
    """
    of_part: dict[str, list[Answer]] = {}
    for answer in answers:
        of_part.setdefault(answer.question.part, []).append(answer)
    lines = ["# What should train the models of 2026?", "", *_first(answers), ""]
    for part, write in PARTS.items():
        if part in of_part:
            lines += [*write(of_part[part], answers), ""]
        if part == "models" and common:
            lines += [*_common(common, of_part[part]), ""]
    believed = [answer.believed for answer in answers if answer.believed is not None]
    if believed:
        lines += [*believed_lines(believed), ""]
    robust = {answer.question.words: answer.robust for answer in answers if answer.robust}
    if robust:
        lines += [*robust_lines(robust), ""]
    return "\n".join([*lines, *_proofs(answers), ""])


def _first(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield what it comes to."""
    models = [answer for answer in answers if answer.question.part == "models"]
    gains = {answer.question.words: _over(answer, answer.known[0]) for answer in models}
    fitting = {words: gain for words, gain in gains.items() if gain > 0.0}
    certified = sum(answer.proven.status == "certified" for answer in answers)
    gaps = [answer.proven.gap for answer in answers]
    rest = (
        f"; what is left of the others is no more than {max(gaps):.1%} better" if any(gaps) else ""
    )
    yield (
        f"{certified} of {len(answers)} optima are certified: no other design of the space is "
        f"better, for this model of costs{rest}. How well a model learns in fewer bits is not "
        f"modelled, and no chip of the spaces has been built. Cost model {COST_MODEL_VERSION}; "
        "written by `make atlas`."
    )
    believed = [answer.believed for answer in answers if answer.believed is not None]
    if believed:
        yield ""
        yield believed_summary(believed)
    if fitting:
        least, most = (choose(fitting, key=fitting.__getitem__) for choose in (min, max))
        yield ""
        yield (
            f"**Within the area of an H100, the best chip trains {fitting[least]:.2f} ({least}) to "
            f"{fitting[most]:.2f} ({most}) times as fast as the H100 itself**, both at their best "
            "placement and options on the same network."
        )
    firsts = [answer for answer in models if answer.chip_first is not None]
    if firsts:
        yield ""
        yield (
            "Choosing the chip alone and placing afterwards reaches "
            + ", ".join(
                f"{_share(answer.chip_first, answer)} ({answer.question.words})"
                for answer in firsts
            )
            + " of the joint optimum."
        )


def _models(part: Sequence[Answer], _: Sequence[Answer]) -> Iterator[str]:
    """Yield the winners, and the known chips beside them."""
    yield "## The best chip for each model"
    yield ""
    head = ("model", "samples/s", "MFU", "mm²", "TC", "VC", "GLB MiB", "HBM GiB", "placement")
    yield from _table(head, (_winner(answer) for answer in part))
    yield ""
    yield "Where its time goes, in percent of a batch:"
    yield ""
    for answer in part:
        yield f"- {answer.question.words}: {_time(answer.proven.trained.shares or {})}"
    yield ""
    yield "## Known chips on the same question"
    yield ""
    yield (
        "Throughput relative to the certified optimum. All have the network of the question; the "
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
        [answer.question.words, *(_share(known, answer) for known in answer.known)]
        for answer in beside
    )
    yield from _table(["model", *shown], rows)


def _common(common: Sequence[Common], models: Sequence[Answer]) -> Iterator[str]:
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
            f"{winner.points:,}: {_chip(winner.values)}, {winner.area_mm2:,.0f} mm²"
        )
    yield ""
    yield (
        "Every model on each of them, at the best of its own options, relative to the certified "
        "optimum of its own chip, than which no common chip is better:"
    )
    yield ""
    shares = zip(*(each.trained for each in common), strict=True)
    rows = (
        [own.question.words, *(_share(trained, own) for trained in on_each)]
        for own, on_each in zip(models, shares, strict=True)
    )
    yield from _table(["model", *(f"chip for {len(each.models)}" for each in common)], rows)


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
    head = ("model", "samples/s", "MFU", "chips", "million USD", "W each", "mm²", "chip", "bits")
    yield from _table(
        head,
        (
            [
                answer.question.words,
                format_number(trained.samples_per_s),
                f"{trained.mfu:.1%}",
                f"{trained.devices:,}",
                f"{trained.tco_usd / 1e6:.1f}",
                f"{trained.wall_power_w:,.0f}",
                f"{trained.area_mm2:,.0f}",
                _chip(answer.proven.values),
                str(answer.proven.values.get("precision", "bf16")),
            ]
            for answer in part
            for trained in [answer.proven.trained]
        ),
    )
    yield ""
    yield "Known chips within the same budget, relative to the certified optimum in bf16:"
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
    head = ("question", "samples/s", "× the answer above", "chip", "network", "placement")
    yield from _table(
        head,
        (
            [
                answer.question.words,
                format_number(answer.proven.trained.samples_per_s),
                _gain(answer, answers),
                _chip(answer.proven.values),
                _network_words(answer.proven.values),
                answer.proven.trained.placement,
            ]
            for answer in part
        ),
    )


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
    head = ("model", "samples/s", "× bf16", "precision", "fp8 per bf16", "fp4 per bf16", "mm²")
    yield from _table(
        head,
        (
            [
                answer.question.words,
                format_number(answer.proven.trained.samples_per_s),
                _gain(answer, answers),
                *(
                    str(answer.proven.values.get(axis, ""))
                    for axis in ("precision", "fp8_ratio", "fp4_ratio")
                ),
                f"{answer.proven.trained.area_mm2:,.0f}",
            ]
            for answer in part
        ),
    )


def _devices(part: Sequence[Answer], answers: Sequence[Answer]) -> Iterator[str]:
    """Yield winners by the number of devices."""
    yield "## More and fewer devices"
    yield ""
    yield "The global batch grows with them. Samples per second and device stand against 1,024."
    yield ""
    head = ("question", "samples/s", "× for each device", "MFU", "chip", "placement")
    yield from _table(
        head,
        (
            [
                answer.question.words,
                format_number(answer.proven.trained.samples_per_s),
                f"{_times(answer, answers) * _fewer(answer, answers):.3f}",
                f"{answer.proven.trained.mfu:.1%}",
                _chip(answer.proven.values),
                answer.proven.trained.placement,
            ]
            for answer in part
        ),
    )


def _variants(part: Sequence[Answer], answers: Sequence[Answer]) -> Iterator[str]:
    """Yield what one thing less, or more, costs when the chip is searched again."""
    yield "## One thing otherwise"
    yield ""
    yield "The chip and the placement are searched again for every row."
    yield ""
    head = ("question", "samples/s", "× the answer above", "chip", "placement")
    yield from _table(
        head,
        (
            [
                answer.question.words,
                format_number(answer.proven.trained.samples_per_s),
                _gain(answer, answers),
                _chip(answer.proven.values),
                answer.proven.trained.placement,
            ]
            for answer in part
        ),
    )


def _proofs(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield what was looked at, for every space."""
    yield "## Proofs"
    yield ""
    head = ("study", "designs", "evaluated", "status", "checks of its certificate")
    yield from _table(
        head,
        (
            [
                answer.question.spec.name,
                f"{answer.proven.points:,}",
                f"{answer.proven.evaluated:,}",
                _status(answer),
                "not checked" if answer.checks is None else f"{answer.checks:,}",
            ]
            for answer in answers
        ),
    )


PARTS = {
    "models": _models,
    "bits": _bits,
    "dollars": _dollars,
    "watts": _watts,
    "network": _network,
    "devices": _devices,
    "variants": _variants,
}


def _winner(answer: Answer) -> list[str]:
    """Return the row of a winner."""
    values, trained = answer.proven.values, answer.proven.trained
    return [
        answer.question.words,
        format_number(trained.samples_per_s),
        f"{trained.mfu:.1%}",
        f"{trained.area_mm2:,.0f}",
        f"{values['num_tc']} × {values['pe_x']}×{values['pe_y']}",
        f"{values['num_vc']} × {values['pe_vc']}",
        str(values["glb_mib"]),
        str(values["hbm_gib"]),
        trained.placement,
    ]


def _status(answer: Answer) -> str:
    """Return whether the optimum is certified, else its gap."""
    proven = answer.proven
    return proven.status if proven.gap == 0.0 else f"gap {proven.gap:.1%}"


def _chip(values: Mapping[str, Scalar]) -> str:
    """Return a chip in a few words."""
    return "{} × {}×{}, {} × {}, {} MiB, {} GiB".format(*(values[name] for name in _CHIP))


def _time(shares: Mapping[str, float]) -> str:
    """Return where the time goes, the largest part first."""
    parts = sorted(shares.items(), key=lambda part: -part[1])
    return ", ".join(
        f"{kind_words(kind)} {share:.0%}" for kind, share in parts if share >= _LEAST_SHARE
    )


def _over(answer: Answer, trained: Trained) -> float:
    """Return how many times as fast the winner is; 0 where the other does not fit."""
    if trained.samples_per_s == 0.0:
        return 0.0
    return answer.proven.trained.samples_per_s / trained.samples_per_s


def _share(trained: Trained | None, answer: Answer) -> str:
    """Return a throughput relative to the optimum of a question."""
    if trained is None or trained.samples_per_s == 0.0:
        return "does not fit"
    return f"{trained.samples_per_s / answer.proven.trained.samples_per_s:.3f}"


def _base_of(answer: Answer, answers: Sequence[Answer]) -> Answer:
    """Return the answer that one is set against."""
    return next(each for each in answers if each.question.spec.name == answer.question.against)


def _times(answer: Answer, answers: Sequence[Answer]) -> float:
    """Return a throughput over the one that it is set against."""
    base = _base_of(answer, answers)
    return answer.proven.trained.samples_per_s / base.proven.trained.samples_per_s


def _gain(answer: Answer, answers: Sequence[Answer]) -> str:
    return f"{_times(answer, answers):.3f}"


def _fewer(answer: Answer, answers: Sequence[Answer]) -> float:
    """Return how many times as many devices the base has."""
    return _base_of(answer, answers).question.spec.devices / answer.question.spec.devices
