"""What mkdocs calls: it loads this file by its path, as no part of the package."""

from docs.tools.site import on_config, on_files, on_page_markdown

__all__ = ["on_config", "on_files", "on_page_markdown"]
