"""What an enumeration proved."""

from __future__ import annotations

import re
from pathlib import Path

from phaze_opt.report.markdown import note_of, report_markdown
from phaze_opt.report.page import report_page
from phaze_opt.report.plots.by_kind import plot
from phaze_opt.report.study_view import view_of
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.study.study import create_study
from phaze_opt.whole_space.enumerating import enumerate_study
from phaze_opt.whole_space.fronts import front_of_study
from tests.report.plots.figures import trace_named
from tests.report.studies import run_study


def test_a_stored_enumeration_is_shown_as_the_certified_optimum(tmp_path: Path) -> None:
    """Beside the trials stands the optimum, which no trial exceeds."""
    spec = StudySpec(
        "small",
        "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128",
        "tpuv4-ici-flat",
        4,
        16,
        space=Space(num_tc=(4, 16), pe_vc=[64, 128, 1024], microbatch=[1, 2]),
    )
    study = create_study(spec, f"sqlite:///{tmp_path / 'a.db'}")
    study.run(3)
    assert view_of(study).certificate is None
    enumeration = enumerate_study(study)
    view = view_of(study)
    assert view.certificate is not None and view.certificate.found == enumeration
    (optimum,) = [design for design in view.compared if design.kind == "optimum"]
    assert optimum.value == enumeration.top[0].metrics.value
    assert optimum.ratio is not None and optimum.ratio <= 1.001
    assert len(view.certificate.top) == len(enumeration.top)
    words = view.certificate.words
    assert (
        f"Of {enumeration.points:,} designs" in words
        and f"{enumeration.evaluated:,} are evaluated" in words
    )
    assert re.search(r", on \d{4}-\d\d-\d\d at \d\d:\d\d UTC\.", words)
    page, note, report = report_page(view), note_of(view), report_markdown(view)
    for command in (
        "phaze-opt study enumerate small --certificate small-certificate.json",
        "phaze-opt study verify small-certificate.json",
    ):
        assert all(command in text for text in (page, note, report))


def test_a_stored_front_is_shown_with_its_designs(tmp_path: Path) -> None:
    """On the page, in the report, and as a line in the plot of value against area."""
    space = Space(num_tc=[4, 8, 16], num_vc=[16], pe_x=[8], pe_y=[8], pe_vc=[64], microbatch=[1])
    study = run_study(tmp_path, trials=3, space=space)
    assert view_of(study).front is None
    assert 'id="front"' not in report_page(view_of(study))
    found = front_of_study(study, bounds=False).found
    view = view_of(study)
    assert view.front is not None and len(view.front.rows) == len(found.designs)
    page = report_page(view)
    assert 'id="front"' in page and view.front.words in page
    line = trace_named(plot(view, "area"), "proven front")
    pairs = sorted(zip(line["x"], line["y"], strict=True))
    assert pairs == sorted((each.values[1], each.values[0]) for each in found.designs)
    values = [value for _, value in pairs]
    assert values == sorted(values)
