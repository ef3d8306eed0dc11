"""Prompts that the target writes itself, as text."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.bench.workloads.prompts import Prompt
from dspark.demo.source import Progress
from dspark.training.config import OwnPromptsConfig
from dspark.training.data.own_prompts import (
    OwnPromptFile,
    UserTurn,
    gather_own_prompts,
)
from dspark.training.run.stages import timed_stage
from server.settings.schema import SettingsError
from server.text.tokenizer import ChatTemplateError, TextCodec

if TYPE_CHECKING:
    from dspark.training.run.pipeline import Training

logger = logging.getLogger(__name__)


def user_turn_of(codec: TextCodec) -> UserTurn:
    """Raises SettingsError for a chat template that does not tell."""
    try:
        opening, end_ids = codec.user_turn()
    except ChatTemplateError as error:
        raise SettingsError(f"own_prompts.count: {error}; accepted here: 0") from error
    return UserTurn(tuple(opening), end_ids)


def own_prompts(
    training: "Training",
    codec: TextCodec,
    turn: UserTurn,
    config: OwnPromptsConfig,
    *,
    folder: Path,
    others: Sequence[Prompt],
    progress: Progress,
) -> tuple[Prompt, ...]:
    """As many as are wanted, those of an earlier run first. Raises LoadError.

    others: prompts that are there already, and are not written again.
    """
    file = OwnPromptFile(
        path=folder / "own-prompts.jsonl", config=config, target=training.fingerprint, turn=turn
    )
    progress.start("prompts of the target's own", total=config.count)
    with timed_stage("own prompts"):
        dropped = gather_own_prompts(
            config,
            file,
            write=lambda: training.turn_writer(turn),
            read=lambda token_ids: _text(codec, token_ids),
            known=[message["content"] for prompt in others for message in prompt.messages],
            report=progress.update,
        )
    for reason, number in dropped.items():
        logger.info("dropped %d of the target's own prompts: %s", number, reason)
    return file.first(config.count)


def _text(codec: TextCodec, token_ids: Sequence[int]) -> str | None:
    """What the tokens say; None if some say nothing, or are no whole characters."""
    text = codec.decode(token_ids, skip_special_tokens=False)
    if "\ufffd" in text or text != codec.decode(token_ids):
        return None
    return text.strip()
