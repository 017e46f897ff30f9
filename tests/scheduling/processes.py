"""What a script prints in fresh interpreters."""

import subprocess
import sys


def printed_by_processes(script: str) -> set[str]:
    """Run a script in two interpreters with other hash seeds; return the different outputs."""
    return {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
