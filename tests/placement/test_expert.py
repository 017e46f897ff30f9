import pytest

from phaze_opt.degrees import Degrees
from phaze_opt.errors import InputError
from phaze_opt.placement.expert import expert_degrees, expert_placements
from phaze_opt.workload.zoo import load_workload


@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        ("opt-350m", (12, 85, 1)),
        ("bert-large", (8, 128, 1)),
        ("gpt2-xl", (32, 32, 1)),
        ("megatron-gpt2-2.5b", (8, 32, 4)),
        ("megatron-gpt2-8.3b", (8, 16, 8)),
        ("gpt3-175b", (32, 8, 4)),
        ("llama2-7b", (8, 128, 1)),
    ],
)
def test_published_degrees(model: str, degrees: tuple[int, int, int]) -> None:
    """At 1024 devices the degrees are those of the published baseline."""
    assert expert_degrees(model, 1024) == Degrees(*degrees)


def test_every_model_of_the_table_is_known() -> None:
    """Each replica fits 1024 devices."""
    assert all(pipeline * tensor <= 1024 for pipeline, tensor in expert_placements().values())


def test_unknown_models_and_few_devices() -> None:
    """Models outside the table are named; one replica is the least."""
    with pytest.raises(InputError, match="Did you mean 'bert-large'"):
        expert_degrees("bert-larg", 1024)
    assert expert_degrees("megatron-gpt2-8.3b", 8) == Degrees(8, 1, 8)


def test_another_attention_is_placed_alike() -> None:
    """A model with another attention is captured under another name, and placed as before."""
    model = load_workload("bert-large", attention="flash").model
    assert model != "bert-large"
    assert expert_degrees(model, 1024) == expert_degrees("bert-large", 1024)
