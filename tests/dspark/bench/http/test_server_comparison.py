"""Tables and values of servers that ran one at a time."""

from pathlib import Path

import pytest

from dspark.bench.http.backends import Usage
from dspark.bench.http.isolated_servers import IsolatedPlan, IsolatedServer, StreamLoad
from dspark.bench.http.offline_engine import EngineTrial
from dspark.bench.http.request_metrics import ServedTrial
from dspark.bench.http.server_comparison import AddedTime, ServerComparison
from dspark.bench.http.server_specs import ServerSpec
from dspark.bench.http.streamed_request import Failure, RequestRecord
from dspark.bench.workloads.prompts import Prompt

ONE, TWO = StreamLoad(streams=1, num_prompts=2), StreamLoad(streams=2, num_prompts=2)
PROMPTS = tuple(Prompt(kind, ({"role": "user", "content": kind},)) for kind in ("chat", "code"))


def trial(*speeds: float, tokens: int = 100, text: str = "x") -> ServedTrial:
    """Requests one after the other, each at its tokens a second."""
    records, at = [], 0.0
    for prompt, speed in enumerate(speeds):
        ended = at + tokens / speed
        times = [at + 0.5, ended]
        records.append(RequestRecord(prompt, at, times, text, "length", Usage(10, tokens, 0)))
        at = ended
    return ServedTrial.of(records, cache_flushed=True)


def server(
    name: str, *trials: ServedTrial, load: StreamLoad = ONE, peer: bool = False
) -> IsolatedServer:
    spec = ServerSpec(about=name, start="$BIN/serve", url="http://h:1", peer=peer)
    made = IsolatedServer(
        name, spec, environment={"BIN": "/secret"}, logs=Path("."), start_timeout_s=1
    )
    made.served = {load: list(trials)}
    made.start_seconds = [2.0]
    made.server_values = {"model": "tiny"}
    return made


def comparison(*servers: IsolatedServer, load: StreamLoad = ONE) -> ServerComparison:
    return ServerComparison(
        servers, IsolatedPlan(PROMPTS, Path("p"), (load,), max_tokens=100, trials=2)
    )


def test_speeds_are_medians_with_a_ratio_to_every_peer() -> None:
    ours = server("ours", trial(40, 40), trial(50, 50), trial(60, 60))
    theirs = server("theirs", trial(20, 20), trial(20, 20), trial(25, 25), peer=True)
    found = comparison(ours, theirs)
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


def test_one_stream_has_a_table_by_kind_of_prompt() -> None:
    found = comparison(server("ours", trial(40, 80)))
    lines = [line.split() for line in found.lines()]
    assert ["chat", "40"] in lines
    assert ["code", "80"] in lines
    many = comparison(server("ours", trial(40, 80), load=TWO), load=TWO)
    assert not any(line.startswith("chat") for line in many.lines())


def test_added_time_is_in_percent_of_the_engine_and_of_its_models() -> None:
    ours = server("ours", trial(40, 40), trial(50, 50))
    ours.engine[ONE] = [EngineTrial(4.0, 200, 80.0), EngineTrial(4.0, 200, 100.0)]
    added = AddedTime.of(ours, ONE)
    assert added is not None
    # 25 and 20 ms a token served, 20 in the engine; 16 and 20 in its models
    assert (added.to_engine.low, added.to_engine.high) == pytest.approx((0, 25))
    assert added.to_engine.median == pytest.approx(12.5)
    assert (added.to_passes.low, added.to_passes.high) == pytest.approx((0, 56.25))
    lines = comparison(ours).lines()
    assert any(line.startswith("ours, 1 stream") and "12.5 % [" in line for line in lines)
    assert AddedTime.of(server("plain", trial(40, 40)), ONE) is None


def test_answers_that_differ_in_text_or_length_are_reported() -> None:
    ours = server("ours", trial(40, 40))
    theirs = server("theirs", trial(20, 20, tokens=90, text="y"), peer=True)
    found = comparison(ours, theirs)
    line = "answers of theirs equal to those of ours, letter by letter: 0 of 2"
    assert line in found.lines()
    assert found.notes() == [
        "1 stream, 2 prompts: not all generated the same number of tokens: ours 200; theirs 180"
    ]


def test_a_server_that_answers_nothing_does_not_hold() -> None:
    failed = RequestRecord(0, 0.0, failure=Failure("status 500", "out of memory"))
    found = comparison(server("ours", ServedTrial.of([failed], cache_flushed=True)))
    assert not found.holds
    assert "  ours: 1 x status 500: out of memory" in found.lines()
    assert found.values()["loads"][0]["added_percent"] == {}  # type: ignore[index]


def test_the_result_has_the_commands_without_values_of_the_environment() -> None:
    values = comparison(server("ours", trial(40, 40))).values()
    assert values["contenders"]["ours"]["start"] == "$BIN/serve"  # type: ignore[index]
    assert "secret" not in str(values)
