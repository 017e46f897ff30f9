"""Enumerate the spaces of this folder and write what they prove: ``python -m studies.experts``."""

from pathlib import Path

from studies.certified import Folder, enumerate_folder

if __name__ == "__main__":
    enumerate_folder(
        Folder(
            Path(__file__).parent,
            "Chips for mixtures of experts",
            "Chip and placement together: which accelerator, and among how many devices its "
            "experts are shared out.",
        )
    )
