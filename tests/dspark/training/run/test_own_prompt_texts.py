"""Where a chat template lets a user speak, and a training from what is said there."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark.training.run.own_prompt_texts import user_turn_of
from server.settings.schema import SettingsError
from server.text.tokenizer import ChatTemplateError, TextCodec
from tests.support.server.logs import log_given_back
from tests.support.server.tiny_pair import TinyPair, character_tokenizer
from tests.support.training.command import train, write_config

MARKED = "{% for m in messages %}<bos>{{ m.role }} {{ m.content }} <eos>{% endfor %}"


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    with log_given_back():
        yield


def codec_with(template: str | None) -> TextCodec:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = template
    return TextCodec(tokenizer=tokenizer)


def test_a_user_speaks_after_the_opening_and_until_the_turns_end() -> None:
    codec = codec_with(MARKED)
    turn = user_turn_of(codec)
    assert codec.decode(turn.opening_ids, skip_special_tokens=False) == "<bos>user"
    assert [codec.decode([i], skip_special_tokens=False) for i in turn.end_ids] == ["<eos>"]


def test_plain_text_after_a_message_ends_nothing() -> None:
    turn = user_turn_of(codec_with("{% for m in messages %}Q: {{ m.content }}\n{% endfor %}"))
    assert turn.end_ids == frozenset()


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        (None, "no chat template"),
        ("{{ messages[0].content }} <eos>", "occurs 1 times, after 0 characters"),
        ("say {{ messages[0].content }} {{ messages[0].content }}", "occurs 2 times"),
        ("say {{ messages[0].content | upper }}", "occurs 0 times"),
        ("{{ raise_exception('system first') }}", "refuses a user message"),
    ],
)
def test_a_template_that_does_not_tell_is_refused(template: str | None, complaint: str) -> None:
    codec = codec_with(template)
    with pytest.raises(ChatTemplateError, match=complaint):
        codec.user_turn()
    with pytest.raises(SettingsError, match=r"own_prompts\.count"):
        user_turn_of(codec)


def test_a_draft_is_made_without_any_prompt_from_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = TinyPair.write(tmp_path / "pair")
    generation = pair.target / "generation_config.json"
    ends = {**json.loads(generation.read_text()), "eos_token_id": list(range(60, 130))}
    generation.write_text(json.dumps(ends))  # random weights come to an end, too
    config = write_config(
        tmp_path,
        pair,
        data__prompts=[],
        data__held_out=0.3,
        own_prompts__count=8,
        own_prompts__max_tokens=20,
        answers__min_tokens=2,
        training__max_steps=1,
    )
    assert train(config, "--check") == 0
    assert "0 prompts, 8 own" in capsys.readouterr().out
    assert train(config) == 0
    assert "stage=own_prompts seconds=" in capsys.readouterr().err
    output = tmp_path / "out"
    written = (output / "own-prompts.jsonl").read_text().splitlines()
    assert len(written) == 8
    held_out = [json.loads(x) for x in (output / "held-out-prompts.jsonl").read_text().splitlines()]
    assert held_out
    assert {line["category"] for line in held_out} == {"own"}
    card = (output / "draft" / "README.md").read_text()
    assert "| prompts | own 8 (" in card
    assert "| own prompts | 8, written by the target " in card
    assert "at temperature 1, top_p 0.9, at most 20 tokens, seed 42 |" in card
    assert train(config) == 0  # there is nothing left to do
    assert (output / "own-prompts.jsonl").read_text().splitlines() == written
