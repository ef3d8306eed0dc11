"""Generate text for one prompt and print it as it grows, then its speed and accept length."""

import argparse
import asyncio
import sys
from uuid import uuid4

from dspark.cli.number_flags import add_temperature_flag, an_integer, at_least_one
from dspark.cli.startup import add_checking_flags, settle
from dspark.runtime.logs import configure_log
from dspark.runtime.models import resolved_engine_config, running_engine
from dspark.runtime.text import load_text
from engine import EngineClient, EngineSamplingParams, Finish, Request, TokenEvent
from server.settings.base import SettingsError, quoted
from server.settings.flags import add_settings_flags
from server.settings.text_files import decoded, is_unicode
from server.text.chat_template import ChatTemplateError
from server.text.tokenizer import TextCodec

USAGE = "dspark generate [PROMPT] [--model MODEL | --config FILE] [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt", nargs="?", default="-", metavar="PROMPT", help="the prompt; - reads stdin"
    )
    parser.add_argument(
        "--max-tokens", type=at_least_one, default=256, metavar="N", help="default 256"
    )
    add_temperature_flag(parser)
    parser.add_argument(
        "--seed", type=an_integer, metavar="N", help="makes sampled output repeatable"
    )
    parser.add_argument(
        "--raw", action="store_true", help="continue the prompt without a chat template"
    )
    add_checking_flags(parser)
    add_settings_flags(parser)


def run(args: argparse.Namespace) -> int:
    settings = settle(args)
    if settings is None:
        return 0
    prompt = decoded(sys.stdin.buffer.read(), "stdin") if args.prompt == "-" else args.prompt
    if not is_unicode(prompt):
        raise SettingsError(f"PROMPT: found {quoted(prompt)}; accepted: Unicode text")
    if not prompt.strip():
        raise SettingsError("PROMPT: found nothing; accepted: a text, or - with a text on stdin")
    configure_log("warning")
    config = resolved_engine_config(settings)
    text = load_text(settings, config)
    request = Request(
        request_id=uuid4().hex,
        prompt_ids=tuple(_encode(text, prompt, is_raw=args.raw)),
        params=EngineSamplingParams(
            max_new_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed
        ),
    )
    with running_engine(config) as engine:
        finish = asyncio.run(_answer(engine, text, request))
    print(summary(finish), file=sys.stderr)
    return 0


def summary(finish: Finish) -> str:
    """Summarise an answer in one line: tokens, speed and accept length."""
    speculation = finish.speculation
    accept_length = f"{speculation.mean_accept_length:.2f}" if speculation.num_rounds else "-"
    speed = finish.num_output_tokens / finish.decode_seconds if finish.decode_seconds else 0.0
    return (
        f"prompt_tokens={finish.num_prompt_tokens} output_tokens={finish.num_output_tokens} "
        f"finish={finish.reason.value} accept_length={accept_length} "
        f"rounds={speculation.num_rounds} prefill_s={finish.prefill_seconds:.2f} "
        f"decode_s={finish.decode_seconds:.2f} decode_tokens_per_s={speed:.1f}"
    )


def _encode(text: TextCodec, prompt: str, *, is_raw: bool) -> list[int]:
    """Tokenize a prompt. Raises SettingsError if the chat template refuses it."""
    if is_raw or not text.has_chat_template:
        return text.encode(prompt)
    try:
        return text.encode_chat([{"role": "user", "content": prompt}])
    except ChatTemplateError as error:
        raise SettingsError(f"PROMPT: {error}; --raw goes without a template") from error


async def _answer(engine: EngineClient, text: TextCodec, request: Request) -> Finish:
    """Print the answer as it is generated. Raises RequestRejected or EngineDead."""
    decoder = text.decoder(eos_token_ids=engine.info.eos_token_ids)
    ends: list[Finish] = []

    def write(event: TokenEvent) -> None:
        sys.stdout.write("".join(decoder.push(token_id) for token_id in event.token_ids))
        sys.stdout.flush()
        if event.finish is not None:
            ends.append(event.finish)

    await engine.generate(request, write)
    (finish,) = ends
    print(decoder.flush())
    return finish
