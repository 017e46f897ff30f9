"""Lines of options that agree with one another: all together, as no example has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import NoReturn

from phaze_opt.codec import to_json
from phaze_opt.errors import PhazeError
from phaze_opt.evaluation_json import evaluation_from_json_dict, evaluation_to_json_dict
from tests.torture.answering import Answer, ask, in_folder, why_wrong
from tests.torture.case import Case, Outcome, Setting

_MODELS = (
    "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128",
    "gpt:layers=4,hidden=256,heads=4,sequence=128,vocab=1024",
    "llama:layers=3,hidden=256,heads=4,sequence=128,vocab=512,ffn=688",
    "moe:layers=3,hidden=256,heads=4,sequence=128,vocab=512,experts=8,top_k=2,expert_ffn=96",
)
_NEEDED = {
    "--model": _MODELS,
    "--accelerator": ("tpuv4-phaze", "tpuv4", "tpuv5e", "a100-80", "h100", "mi210", "v100"),
    "--cluster": ("flat-4GiB", "tpuv4-ici-flat", "tpuv4-torus", "dgx-a100", "nvl72", "trn2-efa"),
    "--devices": ("1", "2", "4", "8", "16", "64"),
    "--global-batch": ("8", "16", "30", "64"),
    "--microbatch": ("1", "2", "3"),
}
_FREE = {
    "--recompute": ("none", "selective", "full"),
    "--optimizer": ("sgd", "adam", "adam-bf16", "adam-foreach"),
    "--overlap": ("none", "partial", "data", "experts", "all"),
    "--gradient-dtype": ("fp32", "bf16"),
    "--accumulation-dtype": ("fp32", "bf16"),
    "--precision": ("bf16", "fp8", "fp8-row", "fp8-block", "mxfp8", "nvfp4", "int8"),
    "--launch": ("graphs", "compiled", "eager"),
    "--software": ("megatron", "megatron-bridge", "torchtitan-eager", "maxtext", "mpt"),
    "--fusion": ("none", "elementwise", "epilogue"),
    "--attention": ("eager", "flash"),
    "--placement": ("2x2x1", "4x1x1", "1x4x2", "2x1x2", "1x1x1"),
    "--power-limit-w": ("5", "100", "1000"),
    "--sequence": ("32", "64"),
    "--expert-parallel": ("1", "2", "3", "8"),
    "--expert-tensor-parallel": ("0", "1", "2", "5"),
    "--dispatcher": ("nccl", "deepep", "hybridep", "ideal"),
    "--expert-capacity": ("0", "0.5", "1.25"),
    "--expert-imbalance": ("1", "1.3", "64"),
    "--set": ("glb_mib=64", "num_tc=2", "num_vc=1", "hbm_gb_per_s=100", "hbm_gib=1", "fp8_ratio=2"),
}
_SCHEDULES = (
    *((), ("--pipeline-schedule", "1f1b"), ("--pipeline-schedule", "gpipe")),
    *(("--pipeline-schedule", "interleaved", "--interleave", chunks) for chunks in "234"),
    *(("--pipeline-schedule", f"zb-{kind}") for kind in ("h1", "h2", "1p", "2p", "v")),
)
_ZERO = ((), *(("--zero", stage) for stage in "0123"), ("--zero", "3", "--gather-copies"))
_FLAGS = ((), ("--residency",), ("--no-residency",), ("--sequence-parallel",), ("--proof",))
_DEGRADED: tuple[list[str], ...] = (
    *([], [], []),
    *(["--degrade", what] for what in ("slow-device=0.5", "link=0.5", "link.0=0.1")),
    *(["--degrade", f"lost-node={nodes}", "--spare-nodes", "1"] for nodes in (1, 2, 3)),
    ["--degrade", "slow-device=0.9", "--degrade", "link=0.9", "--degrade", "lost-node=1"],
)


def run(setting: Setting) -> Iterator[Outcome]:
    """Evaluate and explain, and read what is printed."""
    with in_folder(setting.folder):
        for number in setting.numbers():
            line = _line(setting.random(number))
            answer = ask(line)
            outcome = why_wrong(answer) or _why_unreadable(line[0], answer)
            yield None if outcome is None else f"{line!r}: {outcome}"


def _line(random: Random) -> list[str]:
    """Draw a line."""
    line = [random.choice(("evaluate", "evaluate", "explain")), "--json"]
    for option, values in _NEEDED.items():
        line += [option, random.choice(values)]
    for option, values in _FREE.items():
        if random.random() < 0.4:
            line += [option, random.choice(values)]
    for options in (_ZERO, _SCHEDULES, _FLAGS):
        line += random.choice(options)
    return line + random.choice(_DEGRADED) if line[0] == "evaluate" else line


def _why_unreadable(command: str, answer: Answer) -> Outcome:
    """Say why the JSON of an answer is none, or no evaluation that equals itself."""
    if answer.code not in (0, 5):
        return None if answer.code == 2 else f"exit code {answer.code}: {answer.sentence[:200]!r}"
    try:
        plain = json.loads(answer.out, parse_constant=_refuse)
        if command == "evaluate":
            again = to_json(evaluation_to_json_dict(evaluation_from_json_dict(plain)))
            return None if again == to_json(plain) else "the evaluation read is another one"
    except (ValueError, PhazeError) as error:
        return f"unreadable: {error}"
    return None


def _refuse(constant: str) -> NoReturn:
    """Refuse what JSON does not have."""
    raise ValueError(f"{constant} is no JSON")


CASE = Case("options", "options that agree, all together", 1_000, 3, 0.12, run)
