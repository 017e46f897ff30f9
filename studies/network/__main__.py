"""Enumerate the spaces of this folder and write what they prove: ``python -m studies.network``."""

from pathlib import Path

from studies.certified import Folder, enumerate_folder

if __name__ == "__main__":
    enumerate_folder(
        Folder(
            Path(__file__).parent,
            "Chip and network together",
            "Which accelerator, how many devices per scale-up domain, which topologies and how "
            "many links, at equal silicon: the PHYs of the links take area of the chip.",
            shows_network=True,
        )
    )
