"""Train a draft for a target: answers, hidden states, steps, export.

The target answers the prompts, the draft is trained on its hidden states, and the result is a
folder for `speculative.draft_model`. The same command with the same output folder resumes a stopped
run. See docs/training.md."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dspark.bench.workloads.prompts import Prompt, PromptFileError, spread
from dspark.cli.measuring import encode, quiet_libraries
from dspark.cli.startup import add_checking_flags, load_or_print
from dspark.runtime.logs import configure_log
from dspark.runtime.models import resolved_target
from dspark.runtime.progress import TerminalProgress
from dspark.runtime.text import codec_of
from dspark.training.data.prompts import (
    TrainingPrompt,
    is_held_out,
    prompt_key,
    read_training_prompts,
    write_prompts,
)
from dspark.training.run.own_prompt_stage import load_own_prompts, user_turn_of
from dspark.training.settings.begun_training import (
    alone_in,
    begin,
    decisive_settings,
    refuse_another_training,
)
from dspark.training.settings.schema import TRAINING, TrainingSettings
from dspark.training.settings.training_config import to_training_config
from server.settings.flags import add_settings_flags
from server.settings.schema import SettingsError
from server.text.tokenizer import TextCodec

USAGE = "dspark train --config FILE [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_checking_flags(parser)
    add_settings_flags(parser, TRAINING)


def run(args: argparse.Namespace) -> int:
    settings = load_or_print(args, TRAINING)
    if settings is None:
        return 0
    prompts = chosen_prompts(settings)
    if args.check:
        asked = decisive_settings(settings, prompts, chat_template=None)
        refuse_another_training(Path(settings.output), asked)
        num_own = settings.own_prompts.count
        more = f", {num_own} own" if num_own else ""
        print(f"the settings are valid; {len(prompts)} prompts{more}")
        return 0
    configure_log("info")
    output = Path(settings.output)
    with (
        explains_how_to_resume(output),
        ExitStack() as stack,
        TerminalProgress(stream=sys.stderr, log_tenths=True) as progress,
    ):
        model = settings.model
        target = resolved_target(model.path, progress)
        codec = codec_of(
            target,
            revision=model.revision,
            trust_remote_code=model.trust_remote_code,
            chat_template=model.chat_template,
        )
        asked = decisive_settings(settings, prompts, chat_template=codec.chat_template)
        refuse_another_training(output, asked)
        config = to_training_config(settings, target=target)
        own = config.own_prompts
        turn = user_turn_of(codec) if own.count else None
        encoded = in_tokens(settings, codec, prompts)
        output.mkdir(parents=True, exist_ok=True)
        stack.enter_context(alone_in(output))
        begin(output, asked)
        quiet_libraries()

        from dspark.training.run.pipeline import Training  # heavy: loads torch

        training = Training(config, progress=progress)
        if turn is not None:
            written = load_own_prompts(
                training, codec, turn, own, folder=output, others=prompts, progress=progress
            )
            prompts += written
            encoded += in_tokens(settings, codec, written)
        held_out = [p for p, found in zip(prompts, encoded, strict=True) if found.is_held_out]
        write_prompts(output / "held-out-prompts.jsonl", held_out)
        outcome = training.run(encoded)
    result = outcome.result
    if outcome.lengths is not None:
        print("\n".join(outcome.lengths.lines()))
    print(f"steps={result.num_steps} exported_step={result.exported_step} draft={outcome.folder}")
    return 0


@contextmanager
def explains_how_to_resume(output: Path) -> Iterator[None]:
    """Print how to go on when a signal ends the block."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        print(
            f"dspark train: stopped; the same command goes on with what {output} holds",
            file=sys.stderr,
        )
        raise


def chosen_prompts(settings: TrainingSettings) -> tuple[Prompt, ...]:
    """Read the prompts of the files, at most data.max_prompts. Raises SettingsError."""
    data = settings.data
    if not data.prompts:
        return ()
    try:
        found = read_training_prompts(
            [Path(file) for file in data.prompts],
            skips_malformed=data.malformed_lines == "skip",
        )
    except (PromptFileError, OSError) as error:
        hint = " (data.malformed_lines: skip omits such lines)"
        is_line = isinstance(error, PromptFileError) and "found no prompt" not in str(error)
        raise SettingsError(f"data.prompts: {error}{hint if is_line else ''}") from None
    for complaint in found.complaints:
        print(f"skipped: {complaint}", file=sys.stderr)
    if found.num_repeated:
        print(f"skipped: {found.num_repeated} repeated prompts", file=sys.stderr)
    prompts = tuple(found.by_key.values())
    if not prompts:
        raise SettingsError("data.prompts: found no prompt that can be used; accepted: at least 1")
    return spread(prompts, min(data.max_prompts or len(prompts), len(prompts)))


def in_tokens(
    settings: TrainingSettings, codec: TextCodec, prompts: Sequence[Prompt]
) -> list[TrainingPrompt]:
    """Tokenize prompts as the server does. Raises SettingsError."""
    keys = [prompt_key(prompt) for prompt in prompts]
    return [
        TrainingPrompt(
            key, found.category, found.token_ids, is_held_out(key, share=settings.data.held_out)
        )
        for key, found in zip(keys, encode(codec, prompts), strict=True)
    ]
