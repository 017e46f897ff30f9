"""Tokens per sample of a user's own module: what its layers and inputs show, and what is said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from phaze_opt.errors import InputError
from phaze_opt.evaluation import evaluate
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.report.layout import to_text
from phaze_opt.report.tables import evaluation_tables
from phaze_opt.training import Training
from phaze_opt.workload.capture.tokens import tokens_per_sample
from phaze_opt.workload.capture.user_module import capture
from phaze_opt.workload.graph import Workload
from tests.workload import user_modules
from tests.workload.user_modules import ROWS, WIDTH, WORDS

sizes = st.integers(1, 64)


@settings(derandomize=True, deadline=None)
@given(samples=sizes, tokens=sizes, hidden=sizes, calls=st.integers(1, 4), turned=st.booleans())
def test_activations_show_the_tokens(
    samples: int, tokens: int, hidden: int, calls: int, turned: bool
) -> None:
    """Whether samples or tokens come first; inputs of another shape do not change it."""
    shape = (tokens, samples, hidden) if turned else (samples, tokens, hidden)
    image = torch.empty(samples, 3, 8, 8, device="meta")
    # Of two equal dimensions it does not matter which are the tokens.
    assert tokens_per_sample([shape] * calls, image, samples) == tokens
    assert tokens_per_sample([], torch.empty(shape, device="meta"), samples) == tokens


@settings(derandomize=True, deadline=None)
@given(samples=sizes, tokens=sizes, other=sizes)
def test_ids_show_the_tokens_where_layers_do_not(samples: int, tokens: int, other: int) -> None:
    """Ids and their mask agree on a length; where they do not, none is made up."""
    ids, mask, far = (
        torch.empty(samples, count, dtype=torch.int64, device="meta")
        for count in (tokens, tokens, other)
    )
    flat = [(samples * tokens, WIDTH), (samples, WIDTH)]
    assert tokens_per_sample(flat, {"ids": ids, "mask": mask}, samples) == tokens
    expected = tokens if other == tokens else None
    assert tokens_per_sample(flat, (ids, far), samples) == expected
    assert tokens_per_sample(flat, torch.empty(samples, WIDTH, device="meta"), samples) is None


class Patches(nn.Module):
    """A vision transformer: an image becomes patches of 4 × 4, and blocks take them."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, WIDTH, 4, 4)
        self.blocks = nn.ModuleList(user_modules.Block() for _ in range(2))

    def forward(self, image: Tensor) -> Any:
        """Return a number to minimise."""
        x = self.cut(image).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def patches(samples: int) -> Any:
    """Make the vision transformer."""
    return Patches(), torch.zeros(samples, 3, 32, 32)


class FlatTokens(nn.Module):
    """An embedding whose blocks take the tokens of all samples as one list."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, ids: Tensor) -> Any:
        """Return a number to minimise."""
        x = self.words(ids).flatten(0, 1)
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def flat_tokens(samples: int) -> Any:
    """Make a model of ids."""
    return FlatTokens(), torch.zeros(samples, ROWS, dtype=torch.int64)


@pytest.mark.parametrize(
    ("make", "tokens"),
    [
        (user_modules.language_model, ROWS),
        (user_modules.eager_blocks, ROWS),
        (patches, 64),
        (flat_tokens, ROWS),
        (user_modules.convolutional, 1),  # no sequence
        (user_modules.towers, 1),
    ],
)
def test_modules_show_their_tokens(make: Any, tokens: int) -> None:
    """Whatever the microbatch is, that of as many samples as tokens too."""
    assert capture(make, microbatch=(2, tokens)).sequence == tokens


def test_the_module_of_the_documentation_counts_its_tokens() -> None:
    """A sample of 128 rows counts as 128 tokens in every rate."""
    text = (Path(__file__).parents[2] / "docs" / "own-model.md").read_text("utf-8")
    (source,) = re.findall(r"```python title=\"my_model\.py\"\n(.*?)```", text, re.DOTALL)
    module: dict[str, Any] = {"__name__": "my_model"}
    exec(compile(source, "my_model.py", "exec"), module)
    workload = capture(module["make"], microbatch=(4,))
    result = evaluated(workload)
    assert result.tokens_per_s_per_device == pytest.approx(
        128 * result.throughput_samples_per_s / 8
    )


def evaluated(workload: Workload) -> Any:
    """Train it on eight chips."""
    chip, cluster = load_accelerator("tpuv4-lanes"), load_cluster("flat-4GiB", 8)
    return evaluate(workload, chip, cluster, Training(64, 4))


def test_no_tokens_are_made_up() -> None:
    """Of images no rate in tokens is known, so that no table has one; who says it gets it."""
    silent, said = (
        evaluated(capture(user_modules.convolutional, microbatch=(4,), tokens_per_sample=tokens))
        for tokens in (None, 49)
    )
    assert silent.tokens_per_s_per_device is None
    assert "tokens" not in to_text(evaluation_tables(silent))
    per_device = said.throughput_samples_per_s / 8
    assert said.tokens_per_s_per_device == pytest.approx(49 * per_device)
    assert "tokens/s" in to_text(evaluation_tables(said))


def test_the_old_name_still_holds() -> None:
    """It says what it is called now; both together, and no tokens at all, are refused."""
    make = user_modules.towers
    with pytest.warns(FutureWarning, match="now called tokens_per_sample"):
        assert capture(make, sequence=5).sequence == 5
    with pytest.raises(InputError, match="give one"):
        capture(make, sequence=5, tokens_per_sample=5)
    with pytest.raises(InputError, match="tokens_per_sample is 0, but it must be at least 1"):
        capture(make, tokens_per_sample=0)
