"""How servers stand that had the machine to themselves."""

from pathlib import Path

import pytest

from dspark.bench.http.backends import Usage
from dspark.bench.http.contenders import Contender
from dspark.bench.http.figures import ServedTrial
from dspark.bench.http.isolated_servers import Course, RequestLoad, Stand
from dspark.bench.http.offline_engine import EngineTrial
from dspark.bench.http.standings import Added, Standings
from dspark.bench.http.streamed_request import Call, Failure
from dspark.bench.workloads.prompts import Prompt

ONE, TWO = RequestLoad(streams=1, num_prompts=2), RequestLoad(streams=2, num_prompts=2)
PROMPTS = tuple(Prompt(kind, ({"role": "user", "content": kind},)) for kind in ("chat", "code"))


def trial(*speeds: float, tokens: int = 100, words: str = "x") -> ServedTrial:
    """Requests one after the other, each at its tokens a second."""
    calls, at = [], 0.0
    for prompt, speed in enumerate(speeds):
        ended = at + tokens / speed
        times = [at + 0.5, ended]
        calls.append(Call(prompt, at, times, words, "length", Usage(10, tokens, 0)))
        at = ended
    return ServedTrial.of(calls, has_forgotten=True)


def stand(name: str, *trials: ServedTrial, load: RequestLoad = ONE, peer: bool = False) -> Stand:
    contender = Contender(about=name, start="$BIN/serve", url="http://h:1", peer=peer)
    made = Stand(name, contender, environment={"BIN": "/secret"}, logs=Path("."), start_timeout_s=1)
    made.served = {load: list(trials)}
    made.start_seconds = [2.0]
    made.server_values = {"model": "tiny"}
    return made


def standings(*stands: Stand, load: RequestLoad = ONE) -> Standings:
    return Standings(stands, Course(PROMPTS, Path("p"), (load,), max_tokens=100, trials=2))


def test_speeds_are_medians_and_are_held_against_every_peer() -> None:
    ours = stand("ours", trial(40, 40), trial(50, 50), trial(60, 60))
    theirs = stand("theirs", trial(20, 20), trial(20, 20), trial(25, 25), peer=True)
    found = standings(ours, theirs)
    header, first, second, *_ = found.lines()
    assert header.split("  ")[0] == "1 stream, 2 prompts"
    assert "ratio to theirs" in header
    assert "ratio to ours" not in header
    assert first.startswith("ours")
    assert "50 [40 - 60]" in first
    assert "2.5 [2 - 2.5]" in first
    assert "20 [20 - 25]" in second
    (values,) = found.values()["loads"]  # type: ignore[misc]
    assert values["speed_ratio_to_peers"]["ours"]["theirs"]["median"] == pytest.approx(2.5)
    assert values["speed_ratio_to_peers"]["theirs"] == {"theirs": None}


def test_one_stream_is_told_apart_by_the_kind_of_prompt() -> None:
    found = standings(stand("ours", trial(40, 80)))
    lines = [line.split() for line in found.lines()]
    assert ["chat", "40"] in lines
    assert ["code", "80"] in lines
    many = standings(stand("ours", trial(40, 80), load=TWO), load=TWO)
    assert not any(line.startswith("chat") for line in many.lines())


def test_what_serving_adds_is_told_in_percent_of_the_engine_and_of_its_models() -> None:
    ours = stand("ours", trial(40, 40), trial(50, 50))
    ours.engine[ONE] = [EngineTrial(4.0, 200, 80.0), EngineTrial(4.0, 200, 100.0)]
    added = Added.of(ours, ONE)
    assert added is not None
    # 25 and 20 ms a token served, 20 in the engine; 16 and 20 in its models
    assert (added.to_engine.low, added.to_engine.high) == pytest.approx((0, 25))
    assert added.to_engine.median == pytest.approx(12.5)
    assert (added.to_passes.low, added.to_passes.high) == pytest.approx((0, 56.25))
    lines = standings(ours).lines()
    assert any(line.startswith("ours, 1 stream") and "12.5 % [" in line for line in lines)
    assert Added.of(stand("plain", trial(40, 40)), ONE) is None


def test_answers_that_differ_in_words_or_length_are_told() -> None:
    ours = stand("ours", trial(40, 40))
    theirs = stand("theirs", trial(20, 20, tokens=90, words="y"), peer=True)
    found = standings(ours, theirs)
    said = "answers of theirs equal to those of ours, letter by letter: 0 of 2"
    assert said in found.lines()
    assert found.notes() == [
        "1 stream, 2 prompts: not all made the same number of tokens: ours 200; theirs 180"
    ]


def test_a_server_that_answers_nothing_does_not_hold() -> None:
    failed = Call(0, 0.0, failure=Failure("status 500", "out of memory"))
    found = standings(stand("ours", ServedTrial.of([failed], has_forgotten=True)))
    assert not found.holds
    assert "  ours: 1 x status 500: out of memory" in found.lines()
    assert found.values()["loads"][0]["added_percent"] == {}  # type: ignore[index]


def test_the_result_has_commands_as_they_are_written_and_no_place_of_this_machine() -> None:
    values = standings(stand("ours", trial(40, 40))).values()
    assert values["contenders"]["ours"]["start"] == "$BIN/serve"  # type: ignore[index]
    assert "secret" not in str(values)
