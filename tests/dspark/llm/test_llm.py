"""LLM generates what the model generates, in order, with every option of POST /generate."""

import asyncio
import gc
import json
import re
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from dspark import LLM, Completion, SamplingParams
from engine import LoadError
from tests.dspark.llm.conftest import new_llm
from tests.support.server.tiny_pair import TinyPair, character_tokenizer

GREEDY = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
CHAT = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}},
}


def reference(pair: TinyPair, prompt: str) -> tuple[int, ...]:
    """Return transformers' own greedy tokens."""
    model = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32)
    ids = torch.tensor([character_tokenizer().encode(prompt)])
    out = model.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False)
    return tuple(out[0, ids.shape[1] :].tolist())


# -- generate --------------------------------------------------------------------------------


def test_one_prompt_gives_one_completion_of_the_targets_own_tokens(
    llm: LLM, tiny_pair: TinyPair
) -> None:
    done = llm.generate("hello", GREEDY)
    assert isinstance(done, Completion)
    assert done.token_ids == reference(tiny_pair, "hello")
    assert done.text == character_tokenizer().decode(done.token_ids, skip_special_tokens=True)
    assert done.finish_reason == "length"
    assert done.accept_length >= 1
    assert done.prompt == "hello"
    assert done.prompt_token_ids == tuple(character_tokenizer().encode("hello"))
    assert done.logprobs is done.prompt_logprobs is None


def test_many_prompts_give_results_in_their_order_with_a_progress_bar(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [f"prompt {i}" for i in range(40)]
    together = llm.generate(prompts, GREEDY)
    assert "40/40" in capsys.readouterr().err
    assert [done.prompt for done in together] == prompts
    alone = [llm.generate(prompt, GREEDY) for prompt in prompts[:3]]
    assert [done.token_ids for done in together[:3]] == [done.token_ids for done in alone]
    llm.generate(prompts[:2], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_more_prompts_than_the_engine_takes_at_once_all_come_to_an_end(
    tiny_pair: TinyPair,
) -> None:
    with new_llm(tiny_pair, max_running_requests=2, max_queued_requests=1) as small:
        done = small.generate([f"{i}" for i in range(12)], {"max_tokens": 4, "n": 2, "seed": 1})
        assert [len(each.choices) for each in done] == [2] * 12
        assert len(list(small.stream("x", {"max_tokens": 4, "n": 3, "seed": 1}))) >= 3


def test_no_prompts_give_no_results(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_prompts_may_be_token_ids(llm: LLM) -> None:
    ids = character_tokenizer().encode("hello")
    expected = llm.generate("hello", GREEDY).token_ids
    assert llm.generate(ids, GREEDY).token_ids == expected
    assert [done.token_ids for done in llm.generate([ids, ids], GREEDY)] == [expected] * 2


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    done = llm.generate(["a", "b"], [SamplingParams(max_tokens=2), {"max_tokens": 3}])
    assert [len(each.token_ids) for each in done] == [2, 3]


def test_a_seed_repeats_an_answer_and_choices_differ(llm: LLM) -> None:
    params = SamplingParams(max_tokens=16, temperature=1, seed=7, n=3, ignore_eos=True)
    first, second = llm.generate("hello", params), llm.generate("hello", params)
    assert [c.token_ids for c in first.choices] == [c.token_ids for c in second.choices]
    assert len({c.token_ids for c in first.choices}) == 3
    assert [c.index for c in first.choices] == [0, 1, 2]


def test_a_stop_string_ends_an_answer_and_is_not_in_its_text(llm: LLM) -> None:
    whole = llm.generate("hello", GREEDY).text
    stop = whole[4]
    done = llm.generate("hello", SamplingParams(max_tokens=12, temperature=0, stop=stop))
    assert done.text == whole[: whole.index(stop)]
    assert (done.finish_reason, done.choices[0].stop_reason) == ("stop", stop)


def test_log_probabilities_come_with_every_token_where_they_are_wanted(llm: LLM) -> None:
    done = llm.generate(
        "hello", GREEDY, return_logprob=True, logprob_start_len=0, top_logprobs_num=2
    )
    assert done.logprobs is not None
    assert [entry.token_id for entry in done.logprobs] == list(done.token_ids)
    assert all(entry.top[0] == (entry.token_id, entry.logprob) for entry in done.logprobs)
    assert {len(entry.top) for entry in done.logprobs} == {2}
    assert done.prompt_logprobs is not None
    assert [e.token_id for e in done.prompt_logprobs] == list(done.prompt_token_ids[1:])


def test_biases_and_penalties_shape_the_answer(llm: LLM) -> None:
    only = character_tokenizer().encode("z")[0]
    biased = SamplingParams(max_tokens=4, temperature=0, logit_bias={only: 100})
    assert llm.generate("hello", biased).text == "zzzz"
    varied = SamplingParams(max_tokens=30, temperature=0, frequency_penalty=2, ignore_eos=True)
    plain = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    found = [len(set(llm.generate("hello", p).token_ids)) for p in (plain, varied)]
    assert found[0] < found[1]


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ({"regex": "[ab]{3}"}, "[ab]{3}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"ebnf": 'root ::= "x" [0-9]'}, "x[0-9]"),
    ],
)
def test_an_answer_keeps_to_its_grammar(llm: LLM, grammar: dict[str, Any], pattern: str) -> None:
    done = llm.generate("hello", SamplingParams(temperature=1, seed=1, max_tokens=40, **grammar))
    assert re.fullmatch(pattern, done.text)
    assert done.finish_reason == "stop"


def test_an_answer_keeps_to_its_schema(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    params = SamplingParams(max_tokens=100, json_schema=schema, seed=1)
    assert json.loads(llm.generate("hello", params).text)["a"] in (1, 2)


# -- chat ------------------------------------------------------------------------------------


def test_a_chat_goes_through_the_models_template(llm: LLM) -> None:
    done = llm.chat(CHAT, GREEDY)
    assert done.prompt_token_ids == tuple(character_tokenizer().encode("user: hi\nsay: "))
    assert done.token_ids == llm.generate("user: hi\nsay: ", GREEDY).token_ids


def test_many_chats_give_results_in_their_order(llm: LLM) -> None:
    chats = [[{"role": "user", "content": text}] for text in ("one", "two", "three")]
    done = llm.chat(chats, GREEDY, use_tqdm=False)
    assert [each.prompt for each in done] == chats


def test_template_kwargs_reach_the_template(tiny_pair: TinyPair, tmp_path: Any) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ mood }}: {% for m in messages %}{{ m.content }}{% endfor %}")
    with new_llm(tiny_pair, chat_template=str(template)) as moody:
        done = moody.chat(CHAT, GREEDY, chat_template_kwargs={"mood": "glad"})
    assert done.prompt_token_ids == tuple(character_tokenizer().encode("glad: hi"))


def test_tools_are_offered_and_called(tiny_pair: TinyPair, tmp_path: Any) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for t in tools %}{{ t.function.name }}{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    settings = {"chat_template": str(template), "tool_call_parser": "llama3_json"}
    params = SamplingParams(max_tokens=100, seed=3)
    with new_llm(tiny_pair, **settings) as tooled:
        done = tooled.chat(CHAT, params, tools=[TOOL], tool_choice="required")
        assert done.prompt_token_ids == tuple(character_tokenizer().encode("addhi"))
        (call,) = done.tool_calls
        assert call.name == "add"
        assert isinstance(json.loads(call.arguments), dict)
        assert (done.finish_reason, done.text) == ("tool_calls", "")
        deltas = list(tooled.stream(CHAT, params, tools=[TOOL], tool_choice="required"))
    assert [call for delta in deltas for call in delta.tool_calls] == [call]
    assert deltas[-1].finish_reason == "tool_calls"


# -- stream ----------------------------------------------------------------------------------


@pytest.mark.parametrize("token_by_token", [False, True])
def test_the_deltas_of_a_stream_make_up_the_whole_answer(llm: LLM, token_by_token: bool) -> None:
    whole = llm.generate("hello", GREEDY)
    deltas = list(llm.stream("hello", GREEDY, token_by_token=token_by_token))
    assert "".join(delta.text for delta in deltas) == whole.text
    assert tuple(i for delta in deltas for i in delta.token_ids) == whole.token_ids
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert deltas[-1].accept_length == whole.accept_length
    if token_by_token:
        assert {len(delta.token_ids) for delta in deltas} == {1}


def test_a_stream_takes_messages_and_several_choices(llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, n=2, seed=1)
    texts = ["", ""]
    for delta in llm.stream(CHAT, params):
        texts[delta.index] += delta.text
    assert texts == [choice.text for choice in llm.chat(CHAT, params).choices]


def test_a_stream_that_is_left_gives_its_place_to_others(tiny_pair: TinyPair) -> None:
    params = SamplingParams(max_tokens=240, temperature=0, ignore_eos=True)
    with new_llm(tiny_pair, max_running_requests=1, max_queued_requests=0) as small:
        for _ in range(3):
            for delta in small.stream("hello", params):
                assert delta.token_ids
                break
            gc.collect()
        assert small.generate("hello", GREEDY).finish_reason == "length"


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "'text' must not be empty"),
        ((None,), "send exactly one of text, input_ids and messages; found none"),
        ((3,), "'text' must be a string; found 3"),
        (([[1, 2], [3, "a"]],), r"prompt 1: 'input_ids.1' must be an integer; found \"a\""),
        ((["a", ["b"]],), "prompt 1: 'text' must be one prompt; found a list of prompts"),
        ((["a", {1}],), "prompt 1: 'text' must be made of text, .*; found set"),
        (([10**6],), "'input_ids' must be token ids from 0 to .*; found 1000000"),
        (("hello", 3), "'sampling_params' must be SamplingParams or a dict; found int"),
        (("hello", [GREEDY]), "'sampling_params' is a list, but there is one prompt"),
        ((["a", "b"], [GREEDY]), "'sampling_params' must be one value or 2; found 1"),
        ((["a", "b"], {"top_p": 2}), "prompt 0: 'top_p' must be at most 1; found 2"),
        (("hello", {"max_tokens": 10**6}), "maximum context length .*sampling_params.max_new_tok"),
        (("hello", {"regex": "("}), "'sampling_params.regex'"),
    ],
)
def test_bad_input_is_a_value_error_with_the_fields_name(
    llm: LLM, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate(*arguments)


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        ("hi", {}, "'messages' must be"),
        ([{"role": "user"}], {}, "'messages.0.content' is missing"),
        ([CHAT, [{"role": "cook", "content": "x"}]], {}, "prompt 1: 'messages.0.role'"),
        (CHAT, {"tools": [TOOL]}, "'tools' is not"),
        (CHAT, {"tools": [{"type": "function"}]}, "'tools.0.function' is missing"),
        (CHAT, {"tool_choice": "required"}, "'tool_choice' .*a call; offered: none"),
        (
            CHAT,
            {"chat_template_kwargs": {"tokenize": False}},
            "'chat_template_kwargs' must not .* tokenize",
        ),
    ],
)
def test_a_bad_chat_is_a_value_error_with_the_fields_name(
    llm: LLM, messages: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        llm.chat(messages, GREEDY, **options)


def test_a_stream_refuses_before_its_first_delta(llm: LLM) -> None:
    for prompt, options in (("", {}), ("hello", {"tools": [TOOL]}), ("x", {"token_by_token": 3})):
        with pytest.raises(ValueError, match=r"'text'|'tools'|'token_by_token'"):
            llm.stream(prompt, GREEDY, **options)  # type: ignore[arg-type]


def test_one_bad_prompt_refuses_all_of_them_before_any_runs(llm: LLM) -> None:
    with pytest.raises(ValueError, match="prompt 2: 'text' must not be empty"):
        llm.generate(["a", "b", ""], GREEDY)
    assert llm.generate("a", GREEDY).num_cached_tokens == 0


# -- life ------------------------------------------------------------------------------------


def test_a_closed_llm_refuses(tiny_pair: TinyPair) -> None:
    with new_llm(tiny_pair) as short:
        stream = short.stream("hello", GREEDY)
        next(stream)
    short.close()
    for call in (lambda: short.generate("a"), lambda: short.stream("a"), lambda: next(stream)):
        with pytest.raises(RuntimeError, match="this LLM is closed"):
            call()


def test_closing_ends_calls_of_other_threads(tiny_pair: TinyPair) -> None:
    long = SamplingParams(max_tokens=240, temperature=0, ignore_eos=True)
    closing, errors = new_llm(tiny_pair), []

    def work() -> None:
        try:
            while True:
                closing.generate(["hello"] * 8, long, use_tqdm=False)
        except RuntimeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    next(closing.stream("x", GREEDY))
    closing.close()
    for thread in threads:
        thread.join(30)
    assert errors == ["this LLM is closed"] * 2


def test_it_works_where_a_loop_runs_already_as_in_a_notebook(llm: LLM) -> None:
    async def cell() -> str:
        return llm.generate("hello", GREEDY).text

    assert asyncio.run(cell()) == llm.generate("hello", GREEDY).text


def test_threads_may_share_it(llm: LLM) -> None:
    expected = llm.generate("hello", GREEDY).token_ids
    found: list[tuple[int, ...]] = []
    threads = [
        threading.Thread(target=lambda: found.append(llm.generate("hello", GREEDY).token_ids))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [expected] * 4


def run_script(pair: TinyPair, *lines: str) -> str:
    """Run a program that has loaded the pair as `llm`; its output."""
    loading = (
        f"llm = LLM(model={str(pair.target)!r}, draft={str(pair.draft)!r}, "
        "device={'num_threads': 1}, kv={'num_pages': 64})"
    )
    script = "\n".join(["from dspark import LLM", loading, *lines])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_interrupt_cancels_what_runs(tiny_pair: TinyPair) -> None:
    out = run_script(
        tiny_pair,
        "import os, signal, threading",
        "threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()",
        "try:",
        "    while True:",
        "        llm.generate('hello', {'max_tokens': 240, 'ignore_eos': True})",
        "except KeyboardInterrupt:",
        "    print('interrupted')",
        "print(llm.generate('hello', {'max_tokens': 3, 'ignore_eos': True}).finish_reason)",
    )
    assert out == "interrupted\nlength\n"


def test_a_script_that_forgets_to_close_ends(tiny_pair: TinyPair) -> None:
    line = "print(llm.generate('hello', {'max_tokens': 3, 'ignore_eos': True}).finish_reason)"
    assert run_script(tiny_pair, line) == "length\n"


def test_a_folder_that_is_no_model_is_a_load_error(tmp_path: Any, tiny_pair: TinyPair) -> None:
    with pytest.raises(LoadError, match=r"a folder without config\.json"):
        LLM(model=tmp_path, draft=tiny_pair.draft)


def test_importing_the_package_loads_no_model_library() -> None:
    script = (
        "import sys, dspark; from dspark import SamplingParams; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
