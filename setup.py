"""Package list: the rooms are found, and the folder ``cli`` is installed as ``phaze_opt.cli``."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["phaze_opt", "phaze_opt.*"]),
        *(f"phaze_opt.{name}" for name in find_packages(include=["cli", "cli.*"])),
    ],
    package_dir={"phaze_opt": "phaze_opt", "phaze_opt.cli": "cli"},
    package_data={
        "": [
            *(f"data/**/*.{kind}" for kind in ("toml", "csv", "zip", "html", "css", "js")),
            "py.typed",
        ]
    },
)
