"""The documentation: pages in Markdown, notebooks, and what builds and checks them."""
