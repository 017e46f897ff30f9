"""Study files: the check refuses what the creation of the study refuses, in the same words."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from unittest.mock import patch

import phaze_opt.study.spec_check as spec_check
from tests.cli.conftest import SMALL_STUDY
from tests.torture.answering import Answer, ask, file_hashes, in_folder, why_wrong
from tests.torture.case import Case, Outcome, Setting
from tests.torture.documents import plain_toml
from tests.torture.mutation import mutated_bytes

MORE = """
optimizer = "adam"
attention = "flash"
baselines = ["tpuv4-lanes"]
objectives = ["throughput"]

[area]
model = "chip"

[constraints]
power_w = 500
"""


def run(setting: Setting) -> Iterator[Outcome]:
    """Change a study file, check it and make a study of it."""
    top, _, rest = SMALL_STUDY.partition("[space]")
    keys, _, tables = MORE.partition("[area]")
    full = f"{top}{keys}\n[area]{tables}\n[space]{rest}"
    texts = [SMALL_STUDY.encode(), full.encode()]
    changes = [plain_toml(text) for text in texts]
    path = setting.folder / "study.toml"
    with (
        in_folder(setting.folder),
        # What a check evaluates beside is not of interest here.
        patch.object(spec_check, "SAMPLED_CHIPS", 3),
        patch.object(spec_check, "EVALUATED_POINTS", 0),
    ):
        for number in setting.numbers():
            random = setting.random(number)
            path.write_bytes(_changed(random, texts, changes))
            yield _try(setting)


def _changed(random: Random, texts: list[bytes], changes: list) -> bytes:  # type: ignore[type-arg]
    """Change one of the files."""
    which = random.randrange(len(texts))
    if random.random() < 0.7:
        content: bytes = changes[which](random)
        return content
    return mutated_bytes(random, texts[which])


def _try(setting: Setting) -> Outcome:
    """Check a file and create its study; then forget the study."""
    before = file_hashes(setting.folder)
    checked = ask(["spec", "check", "study.toml", "--json"])
    created = ask(["study", "create", "study.toml", "--storage", "sqlite:///new.db"])
    after = file_hashes(setting.folder)
    outcome = why_wrong(checked, before, before) or why_wrong(created, before, after)
    for path in setting.folder.glob("new.db*"):
        path.unlink()
    return outcome or _differ(checked, created)


def _differ(checked: Answer, created: Answer) -> Outcome:
    """Say where the check and the creation do not agree."""
    if (checked.code == 0) != (created.code == 0) or (
        checked.code and checked.sentence != created.sentence
    ):
        return (
            f"check says {checked.code} {checked.sentence[:150]!r}, create {created.code} "
            f"{created.sentence[:150]!r}"
        )
    return None


CASE = Case("specs", "changed study files, checked and created", 2500, 6, 0.05, run)
