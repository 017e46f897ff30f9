"""The lines of the container file work in a fresh environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from docs.tools.links import ROOT
from docs.tools.release import build

IN_CONTAINER = "/tmp/phaze-opt"


def lines() -> list[tuple[str, str]]:
    """Return the instructions of the container file."""
    text = (ROOT / "Containerfile").read_text("utf-8")
    rows = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (row.partition(" ") for row in rows)]


def test_the_lines_of_the_container_file_work(tmp_path: Path) -> None:
    """Files are copied to another folder, and programs are those of an environment."""
    folder, home, dist = tmp_path / "copied", tmp_path / "home", tmp_path / "dist"
    for made in (folder, home):
        made.mkdir()
    build(dist)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    paths = (str(tmp_path / "venv" / "bin"), os.environ["PATH"])
    environment = {**os.environ, "HOME": str(home), "PATH": os.pathsep.join(paths)}
    version = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
    ran = []
    for word, rest in lines():
        if word == "FROM":
            assert rest.endswith(version)
        elif word == "COPY":
            *sources, _ = rest.split()
            assert sources == ["requirements.lock", "dist/*.whl"]
            for source in (ROOT / "requirements.lock", *dist.glob("*.whl")):
                shutil.copy(source, folder)
        elif word == "RUN":
            command = rest.replace(IN_CONTAINER, str(folder))
            done = subprocess.run(
                command, shell=True, cwd=home, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{rest}\n{done.stderr}"
            ran.append(rest)
        else:
            assert word in ("WORKDIR", "ENTRYPOINT", "CMD")
    assert len(ran) >= 4
    assert dict(lines())["ENTRYPOINT"] == '["phaze-opt"]'
    subprocess.run(["phaze-opt", "--help"], env=environment, capture_output=True, check=True)
