"""Timelines as drawings."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.report.gantt import GanttLimits, _step, gantt_page
from phaze_opt.scheduling.perfetto import name_event, slice_event

SPANS = st.lists(
    st.tuples(st.floats(0.0, 1.0), st.floats(1e-9, 1.0)).map(lambda pair: (pair[0], sum(pair))),
    min_size=1,
    max_size=30,
)


def page_of(spans: list[tuple[float, float]], name: str = "work") -> str:
    """Draw spans on one lane."""
    events: list[dict[str, Any]] = [
        name_event("process_name", 1, 0, "layer"),
        name_event("thread_name", 1, 1, "TC 0"),
    ]
    events += [slice_event(name, "TC", span, 1, 1, {"bytes": 1024}) for span in spans]
    return gantt_page(events, "drawing")


def rectangles(page: str) -> list[tuple[float, float]]:
    """Return start and width of what is drawn, in pixels."""
    rectangles = re.findall(r'<rect x="([0-9.]+)" y="[0-9]+" width="([0-9.]+)"', page)
    return [(float(x), float(width)) for x, width in rectangles]


@given(SPANS)
def test_everything_drawn_lies_on_the_axis(spans: list[tuple[float, float]]) -> None:
    """Slices begin at or after zero, and end with the axis; none is lost but in a neighbour."""
    drawn = rectangles(page_of(spans))
    assert 1 <= len(drawn) <= len(spans)
    assert min(x for x, _ in drawn) >= 230
    assert max(x + width for x, width in drawn) <= 230 + 1_100 + 0.6


def test_many_slices_become_few() -> None:
    """A long pipeline is drawn in a page of bounded size."""
    page = page_of([(at * 1e-6, (at + 0.9) * 1e-6) for at in range(50_000)])
    assert 1 <= len(rectangles(page)) <= GanttLimits().slices
    assert len(page) < 4_000_000
    assert "and " in page and " more" in page


def test_names_are_text() -> None:
    """Tags and control characters in the name of an operator are shown, and do nothing."""
    page = page_of([(0.0, 1.0)], "<script>alert(1)</script>\x1b[2J")
    assert "<script" not in page and "\x1b" not in page and "&lt;script&gt;" in page


def test_nothing_takes_no_time() -> None:
    """A schedule without any duration says so."""
    assert "Nothing takes any time." in gantt_page([name_event("process_name", 1, 0, "a")], "b")


@given(st.floats(1e-12, 1e6))
def test_steps_are_round_and_few(least_s: float) -> None:
    """The lines of the axis lie at 1, 2 or 5 times a power of ten."""
    step_s = _step(least_s)
    assert least_s <= step_s * (1 + 1e-9) and step_s <= 10 * least_s
    assert f"{step_s:.3e}"[0] in "125"
