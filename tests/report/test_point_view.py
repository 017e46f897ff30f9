"""What the what-if page says of two points."""

from __future__ import annotations

from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.report.point_view import two_points_view
from phaze_opt.training import Training

MODEL = "gpt:layers=2,hidden=256,heads=4,sequence=128,vocab=1024"


def compared(first: Evaluation, second: Evaluation) -> str:
    """Return the sentence."""
    words = two_points_view({"A": first, "B": second}, {})["comparison"]
    assert isinstance(words, str)
    return words


def test_two_points_are_compared_with_their_silicon() -> None:
    """Devices and areas are named where they differ, and an area that is not known always."""
    training = Training(global_batch=16, microbatch=1)

    def on(chip: str, devices: int = 4) -> Evaluation:
        return evaluate(MODEL, chip, "tpuv4-ici-flat", training, devices=devices)

    small, large = on("tpuv4-lanes"), on("h100")
    assert small.area_mm2 is not None
    assert large.area_mm2 is not None
    assert compared(small, small) == "B trains 1.000 times as fast as A."
    assert f"{large.area_mm2 / small.area_mm2:.3g} times the area per chip" in compared(
        small, large
    )
    assert "on 8 devices against 4." in compared(small, on("tpuv4-lanes", 8))
    assert "no area is known of the chip of B." in compared(small, on("wse2"))
    assert "no area is known of the chip of A." in compared(on("wse2"), small)
    assert "no area is known of either chip." in compared(on("wse2"), on("mi300x"))
