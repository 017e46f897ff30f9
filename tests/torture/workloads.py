"""Files of captured models."""

from __future__ import annotations

from collections.abc import Iterator

from phaze_opt.codec import to_json
from phaze_opt.workload.zoo import load_workload
from tests.torture.case import Case, Outcome, Setting
from tests.torture.documents import Document, answer_documents

MODEL = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"
EVALUATE = (
    *("evaluate", "--model", "{}", "--accelerator", "tpuv4-lanes", "--cluster", "flat-4GiB"),
    *("--devices", "8", "--global-batch", "8", "--microbatch", "1", "--json"),
)


def run(setting: Setting) -> Iterator[Outcome]:
    """Change a captured model, and show or evaluate it."""
    content = to_json(load_workload(MODEL, tensor_parallel=(1,)))
    commands = (("workload", "show", "{}", "--json"), ("workload", "show", "{}"), EVALUATE)
    return answer_documents(setting, [Document("model.json", content, commands)])


CASE = Case("workloads", "changed workload files", 1500, 4, 0.01, run)
