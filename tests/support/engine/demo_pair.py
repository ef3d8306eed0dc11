"""The demo pair, loaded for tests marked `weights`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from engine.build import Built, wire_engine
from engine.config import EngineConfig
from engine.loading.draft import LoadedDraft, load_draft
from engine.loading.target import LoadedTarget, load_target

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class DemoPair:
    """Both models, loaded once; engines over them are cheap."""

    config: EngineConfig
    target: LoadedTarget
    draft: LoadedDraft

    @classmethod
    def load(cls, target_folder: Path, draft_folder: Path) -> "DemoPair":
        config = EngineConfig(
            target=str(target_folder),
            draft=str(draft_folder),
            draft_budget="always",  # rounds as the original makes them, and the same in every run
            max_model_len=1024,
            num_pages=192,
        )
        target = load_target(
            config.target,
            revision=None,
            dtype=torch.float32,
            device=CPU,
            trust_remote_code=False,
            max_model_len=config.max_model_len,
        )
        return cls(config, target, load_draft(config, target, CPU))

    def engine(self, *, speculates: bool = True, **settings: Any) -> Built:
        return wire_engine(
            replace(self.config, **settings),
            target=self.target,
            draft=self.draft if speculates else None,
            device=CPU,
        )
