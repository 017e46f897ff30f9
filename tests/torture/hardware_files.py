"""Files of accelerators and clusters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tests.torture.answering import ask, in_folder
from tests.torture.case import Case, Outcome, Setting
from tests.torture.documents import Document, answer_documents
from tests.torture.mutation import to_toml

GEMM = ("estimate", "gemm", "--m", "512", "--n", "512", "--k", "512", "--accelerator", "{}")
ACCELERATOR_COMMANDS = (
    ("accelerator", "check", "{}"),
    ("accelerator", "show", "{}", "--json"),
    ("accelerator", "compare", "{}", "tpuv4"),
    (*GEMM, "--precision", "fp8"),
    GEMM,
)
COLLECTIVE = ("estimate", "collective", "--kind", "all_reduce", "--bytes", "1e9", "--cluster", "{}")
CLUSTER_COMMANDS = (
    ("cluster", "show", "{}"),
    ("cluster", "show", "{}", "--json"),
    (*COLLECTIVE, "--devices", "8"),
    (*COLLECTIVE, "--devices", "96"),
)


def run_accelerators(setting: Setting) -> Iterator[Outcome]:
    """Change the files of three chips, whole or based on another."""
    based = 'base = "h100"\nglb_mib = 80\nclock_ghz = 1.5\n[calibration]\nhbm_efficiency = 0.8\n'
    return answer_documents(
        setting,
        [
            *_documents(setting, "accelerator", ("tpuv4-lanes", "h100"), ACCELERATOR_COMMANDS),
            Document("based.toml", based.encode(), ACCELERATOR_COMMANDS),
        ],
    )


def run_clusters(setting: Setting) -> Iterator[Outcome]:
    """Change the files of three networks."""
    names = ("dgx-h100", "tpuv4-torus", "flat-4GiB")
    return answer_documents(setting, _documents(setting, "cluster", names, CLUSTER_COMMANDS))


def _documents(
    setting: Setting, noun: str, names: Sequence[str], commands: tuple[tuple[str, ...], ...]
) -> list[Document]:
    """Write presets as JSON and as TOML."""
    documents = []
    with in_folder(setting.folder):
        for name in names:
            shown = ask([noun, "show", name, "--json"])
            plain = json.loads(shown.out)
            documents.append(Document(f"{name}.json", shown.out.encode(), commands))
            documents.append(Document(f"{name}.toml", to_toml(plain).encode(), commands))
    return documents


ACCELERATORS = Case("accelerators", "changed accelerator files", 1500, 6, 0.01, run_accelerators)
CLUSTERS = Case("clusters", "changed cluster files", 1000, 4, 0.01, run_clusters)
