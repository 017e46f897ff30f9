"""Digests of captured workloads, which may change only together with `CAPTURE_VERSION`.

``python -m tests.workload.golden`` writes the file anew; it refuses if numbers have changed and the
version has not.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from phaze_opt.codec import to_json
from phaze_opt.workload.cache import CAPTURE_VERSION
from phaze_opt.workload.capture.transformer import capture_transformer
from phaze_opt.workload.zoo import model_config

PATH = Path(__file__).parent.parent / "data" / "golden_captures.json"

CASES = (
    ("bert-large", 1, 2, False),
    ("gpt2-xl", 1, 1, False),
    ("megatron-gpt2-8.3b", 4, 2, True),
    ("opt-350m", 2, 1, False),
    ("llama3-8b", 8, 1, True),
)
"""Model, tensor degree, microbatch, sequence parallelism."""


def digests() -> dict[str, str]:
    """Capture every case and return the digest of its JSON."""
    found = {}
    for model, tensor_degree, microbatch, split in CASES:
        variant = capture_transformer(
            model_config(model),
            tensor_parallel=tensor_degree,
            microbatch=microbatch,
            sequence_parallel=split,
        )
        name = f"{model} t={tensor_degree} b={microbatch} sequence_parallel={split}"
        found[name] = hashlib.sha256(to_json(variant)).hexdigest()
    return found


def main() -> None:
    """Write the golden file."""
    before: dict[str, Any] = json.loads(PATH.read_text("utf-8")) if PATH.exists() else {}
    now = digests()
    if before.get("capture_version") == CAPTURE_VERSION and before.get("digests") != now:
        sys.exit("Captures have changed: raise CAPTURE_VERSION first.")
    content = {"capture_version": CAPTURE_VERSION, "digests": now}
    PATH.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
