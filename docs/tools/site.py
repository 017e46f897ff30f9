"""Hooks of mkdocs: pages that are not Markdown files of ``docs``, and links between them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files

from docs.tools.links import DOCUMENTS, FOLDER, GENERATED, ROOT, in_site, with_links
from docs.tools.measured import PARTS

_PART = re.compile(r"<!-- generated: ([\w-]+) -->")


def on_config(config: Any) -> None:
    """List the results of the studies where the navigation has a place for them."""
    (place,) = [section for section in config.nav if section.get("Results") == []]
    place["Results"] = [path for path in DOCUMENTS if path.endswith("/RESULTS.md")]


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, notebooks and documents from elsewhere."""
    for path, written in GENERATED.items():
        files.append(File.generated(config, path, content=written()))
    for path in DOCUMENTS:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        for drawing in (ROOT / path).parent.glob("*.svg"):
            place = drawing.relative_to(ROOT).as_posix()
            if files.get_file_from_path(place) is None:
                files.append(File.generated(config, place, abs_src_path=str(drawing)))
    for notebook in sorted((ROOT / FOLDER / "notebooks").glob("*.ipynb")):
        place = f"notebooks/{notebook.stem}.md"
        listed = files.get_file_from_path(f"notebooks/{notebook.name}")
        if listed is not None:
            files.remove(listed)
        files.append(File.generated(config, place, content=notebook_page(notebook)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put generated parts into a page, and lead its links to pages of the site."""
    path = page.file.src_uri
    source = path if path in DOCUMENTS else f"{FOLDER}/{path}"
    text = with_links(markdown, lambda link: in_site(link, source))
    return _PART.sub(lambda part: PARTS[part[1]](), text)


def notebook_page(path: Path) -> str:
    """Write a notebook as a page: its text, its code, and what the code printed."""
    notebook = nbformat.reads(path.read_text("utf-8"), 4)
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        language = "bash" if cell.source.startswith("%%bash") else "python"
        parts.append(f"```{language}\n{cell.source}\n```")
        for output in cell.get("outputs", ()):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"
