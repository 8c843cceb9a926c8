"""Configuration of a folder that ``harp_lib.save_nemotron_nas`` wrote, as vLLM reads it.

This file is copied into the folder and needs transformers only.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import LlamaConfig


class Settings(dict):
    """Entries of the configuration that are attributes too."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class NemotronNasConfig(LlamaConfig):
    """A Llama whose blocks differ in their attention and in the width of their FFN."""

    model_type = "nemotron-nas"

    def __init__(self, block_configs: Sequence[Mapping] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.block_configs = []
        for block in block_configs:
            parts = {part: Settings(settings) for part, settings in block.items()}
            self.block_configs.append(Settings(parts))
