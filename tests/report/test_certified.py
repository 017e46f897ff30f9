"""What an enumeration proved."""

from __future__ import annotations

import re
from pathlib import Path

from phaze_opt.report.markdown import note_of, report_markdown
from phaze_opt.report.page import report_page
from phaze_opt.report.study_view import view_of
from phaze_opt.spec.space import Space
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.study.study import create_study
from phaze_opt.whole_space.enumerating import enumerate_study


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
