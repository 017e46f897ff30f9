"""Files of scheduling and placement problems."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.partitioning.test_formats import dnn_partitioning, phaze
from tests.scheduling.test_residency_file import ROW
from tests.torture.case import Case, Outcome, Setting
from tests.torture.documents import Document, answer_documents

SCHEDULE = ("schedule", "{}")
PLACE = ("place", "{}", "--format")


def run(setting: Setting) -> Iterator[Outcome]:
    """Change a problem, and solve it where it still is one."""
    documents = (
        Document(
            "layer.json",
            json.dumps(ROW).encode(),
            (SCHEDULE, (*SCHEDULE, "--no-residency"), (*SCHEDULE, "--method", "cp-sat")),
        ),
        Document(
            "graph.json",
            json.dumps(dnn_partitioning()).encode(),
            (
                (*PLACE, "dnn-partitioning"),
                (*PLACE, "dnn-partitioning", "--splits", "any"),
                (*PLACE, "dnn-partitioning", "--objective", "latency"),
                (*PLACE, "phaze"),
            ),
        ),
        Document(
            "chain.json",
            json.dumps(phaze()).encode(),
            ((*PLACE, "phaze"), (*PLACE, "phaze", "--cost", "phaze")),
        ),
    )
    return answer_documents(setting, documents)


CASE = Case("problems", "changed problem files", 2500, 6, 0.02, run)
