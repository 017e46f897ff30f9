"""The captures that come with the package, so that a first run needs no torch.

``python -m tests.workload.shipped`` writes the archive anew, byte for byte the same where nothing
has changed. It holds the named models with either attention and published configurations, with and
without sequence parallelism, at the microbatches that are tried first; of mixtures of experts, the
named models with fused attention; of hybrids by a pattern of sub-layers, of Gemma 3, of Kimi K2
and of DeepSeek-V4, none.
"""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import phaze_opt.workload
from phaze_opt.choices import AttentionKind
from phaze_opt.codec import to_json
from phaze_opt.workload.cache import CaptureKey, file_name
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.huggingface import read_huggingface_config
from phaze_opt.workload.zoo import capture_key, model_config, model_names

PATH = Path(phaze_opt.workload.__file__).parent / "data" / "captures.zip"
CONFIGS = Path(__file__).parent.parent / "data" / "huggingface_configs.json"
MICROBATCHES = (1, 2, 4, 8)
_SAME_TIME = (1980, 1, 1, 0, 0, 0)


def shipped_configs() -> dict[str, TransformerConfig]:
    """Return the shapes in the archive by name."""
    attentions: tuple[AttentionKind, ...] = ("eager", "flash")
    configs = {
        f"{name}, {attention}": replace(model_config(name), attention=attention)
        for name in model_names()
        for attention in attentions
        if attention == "flash" or not model_config(name).experts
        if not (model_config(name).pattern or model_config(name).compressed)
        if not name.startswith(("gemma", "kimi"))
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        for name, row in json.loads(CONFIGS.read_text("utf-8")).items():
            path.write_text(json.dumps(row["config"]), "utf-8")
            config = read_huggingface_config(path)
            if not (config.experts or config.pattern):
                configs[name] = config
    return configs


def shipped_keys(config: TransformerConfig) -> Iterator[CaptureKey]:
    """Yield the keys of one shape."""
    for microbatch in MICROBATCHES:
        for tensor_degree in config.tensor_degrees():
            yield CaptureKey(config, tensor_degree, microbatch, False)
            if tensor_degree > 1 and config.sequence % tensor_degree == 0:
                yield CaptureKey(config, tensor_degree, microbatch, True)


def main() -> None:
    """Write the archive, whole or not at all."""
    unfinished = PATH.with_suffix(".unfinished")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, config in shipped_configs().items():
            print(name)
            for key in shipped_keys(config):
                entry = zipfile.ZipInfo(file_name(key), _SAME_TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, to_json(capture_key(key)), compresslevel=9)
    unfinished.replace(PATH)


if __name__ == "__main__":
    main()
