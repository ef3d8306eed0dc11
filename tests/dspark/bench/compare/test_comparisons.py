"""The comparisons over tiny models, also with an arm that violates the guarantee."""

import dataclasses
import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from draft import BlockRequest, DraftBlock, DSparkProposer
from dspark.bench.compare.speculation import SpeculationComparison, compare_speculation
from dspark.bench.compare.stacked import StackedComparison, compare_stacked
from dspark.bench.compare.throughput import measure_throughput
from dspark.bench.report.outcome import Outcome
from tests.support.bench.broken_engine import wrong_verification
from tests.support.bench.runs import silent, workload
from tests.support.engine.cpu_kernels import kernels_or_skip
from tests.support.engine.running import generate_alone, oracle
from tests.support.engine.tiny_models import (
    CPU,
    VOCAB,
    tiny_engine,
    tiny_target,
    write_tiny_draft,
)

PATHS = workload(2, max_tokens=8, high=12, concurrency=2)


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_draft(tmp_path_factory.mktemp("draft"))


@pytest.fixture(scope="module")
def speculation(draft_folder: Path) -> SpeculationComparison:
    return compare_plain_and_draft(draft_folder, trials=3)


@pytest.fixture(scope="module")
def stacked(draft_folder: Path) -> StackedComparison:
    return compare_paths(draft_folder, trials=2)


def compare_plain_and_draft(draft_folder: Path, *, trials: int) -> SpeculationComparison:
    target = tiny_target(has_eos=False)
    return compare_speculation(
        tiny_engine(target=target),
        tiny_engine(target=target, draft_folder=draft_folder),
        workload(2, max_tokens=8, high=12),
        trials=trials,
        report=silent,
    )


def compare_paths(draft_folder: Path, *, trials: int) -> StackedComparison:
    return compare_stacked(
        tiny_engine(target=tiny_target(has_eos=False), draft_folder=draft_folder),
        PATHS,
        trials=trials,
        repetitions=2,
        device=CPU,
        report=silent,
    )


def parsed(outcome: Outcome) -> dict[str, object]:
    return json.loads(json.dumps(outcome.values(), allow_nan=False))  # type: ignore[no-any-return]


# -- speculation -----------------------------------------------------------------------------


def test_speculation_generates_the_text_of_plain_decoding(
    speculation: SpeculationComparison,
) -> None:
    found = speculation
    assert found.holds
    assert found.agreement.is_exact
    assert found.agreement.num_texts == 2 * 5
    assert found.plain.accept_length == 1
    assert found.speculation.speculation.num_rounds > 0


def test_the_speculation_table_has_what_users_look_for(speculation: SpeculationComparison) -> None:
    text = "\n".join(speculation.lines())
    for label in (
        "plain  ",
        "duration, s",
        "output tokens/s, end to end",
        "decode only",
        "total tokens/s",
        "TTFT, mean",
        "TPOT (without the first token), median",
        "ITL (between events), p99",
        "accept length (bonus included)",
        "accepted at positions 1, 2, ..., %",
        "draft tokens",
        "speculation / plain, output tokens/s end to end: ",
        "share of the time (host clock)",
        "token ids: identical in all 10 texts",
    ):
        assert label in text
    for stage in ("plan", "draft", "verify", "commit", "context", "rest"):
        assert f"\n{stage} " in text
    for category in ("chat", "code"):
        assert f"\n{category} " in text


def test_the_speculation_json_is_complete(speculation: SpeculationComparison) -> None:
    found = parsed(speculation)
    for name in (
        "tokens_per_s",
        "tokens_per_s_target_alone",
        "decode_tokens_per_s",
        "speedup",
        "accept_length_mean",
        "accept_length_counts",
        "ttft_ms_p50",
        "ttft_ms_p99",
        "token_ids_identical",
        "categories",
        "is_measurable",
    ):
        assert name in found
    arms = found["arms"]
    assert isinstance(arms, dict)
    assert list(arms) == ["plain", "speculation"]
    for arm in arms.values():
        assert arm["tokens_per_s"]["min"] <= arm["tokens_per_s"]["median"]
        assert sum(stage["percent"] for stage in arm["stages"].values()) == pytest.approx(100)
        assert set(arm["categories"]) == {"chat", "code"}
    assert arms["speculation"]["drafts"]["median"] > 0
    assert len(arms["speculation"]["accepted_percent_per_position"]) == 4


def test_both_arms_decode_one_int8_target(draft_folder: Path) -> None:
    kernels_or_skip()
    target = tiny_target(has_eos=False)
    speculative = tiny_engine(target=target, draft_folder=draft_folder, quantization="int8")
    plain = tiny_engine(target=speculative.target, quantization="int8")
    found = compare_speculation(
        plain, speculative, workload(2, max_tokens=8, high=12), trials=1, report=silent
    )
    assert found.agreement.is_exact
    assert found.speculation.speculation.num_rounds > 0


def test_each_proposer_alone_has_a_column(draft_folder: Path) -> None:
    target = tiny_target(has_eos=False)
    found = compare_speculation(
        tiny_engine(target=target),
        tiny_engine(target=target, draft_folder=draft_folder, lookup="on"),
        workload(2, max_tokens=8, high=12),
        trials=1,
        report=silent,
        single={
            "draft only": tiny_engine(target=target, draft_folder=draft_folder),
            "lookup only": tiny_engine(target=target, lookup="on", lookup_min_match=1),
        },
    )
    assert found.agreement.is_exact
    text = "\n".join(found.lines())
    for name in ("draft only", "lookup only"):
        assert f"{name} / plain, output tokens/s decode only: " in text
    header = next(line for line in found.lines() if line.startswith("category"))
    assert header.count("/ plain, decode only") == 3
    values = parsed(found)
    arms, ratios = values["arms"], values["speedup_decode_only_of_single_proposers"]
    assert isinstance(arms, dict)
    assert isinstance(ratios, dict)
    assert list(arms) == ["plain", "draft only", "lookup only", "speculation"]
    assert set(ratios) == {"draft only", "lookup only"}


def test_an_arm_with_another_text_fails_the_comparison(draft_folder: Path) -> None:
    with wrong_verification(vocab=VOCAB):
        found = compare_plain_and_draft(draft_folder, trials=1)
    assert not found.holds
    assert "token ids: DIFFERENT, which violates the guarantee" in found.lines()
    assert parsed(found)["token_ids_identical"] is False


def test_answers_of_one_token_have_no_decode_speed_to_compare(draft_folder: Path) -> None:
    target = tiny_target(has_eos=False)
    found = compare_speculation(
        tiny_engine(target=target),
        tiny_engine(target=target, draft_folder=draft_folder),
        workload(max_tokens=1),
        trials=1,
        report=silent,
    )
    assert parsed(found)["speedup_decode_only"] is None
    assert "speculation / plain, output tokens/s decode only: -" in found.lines()


# -- stacked ---------------------------------------------------------------------------------


def test_both_context_paths_generate_the_same_text_in_the_same_rounds(
    stacked: StackedComparison,
) -> None:
    found = stacked
    assert found.holds
    assert found.agreement.is_exact
    assert found.accept_lengths_agree
    assert found.stacked.speculation.num_rounds > 0


def test_each_arm_runs_its_own_path(draft_folder: Path) -> None:
    written: list[str] = []
    write = DSparkProposer.write_context

    def noted(self: DSparkProposer, *rows: torch.Tensor) -> None:
        write(self, *rows)
        written.append(self.context_kv_path)

    built = tiny_engine(target=tiny_target(has_eos=False), draft_folder=draft_folder)
    with patch.object(DSparkProposer, "write_context", noted):
        compare_stacked(
            built,
            workload(2, concurrency=2),
            trials=1,
            repetitions=1,
            device=CPU,
            report=lambda _: written.clear(),
        )
    assert set(written) == {"per_layer"}  # of the last arm of the last trial
    assert built.engine.context_kv_status().mode == "auto"
    assert built.engine.context_kv_status().path == "stacked"


def test_the_stacked_table_and_json_have_the_writes_and_the_verdict(
    stacked: StackedComparison,
) -> None:
    found = stacked
    text = "\n".join(found.lines())
    for label in (
        "per layer / stacked",
        "\n512 ",
        "largest |ΔK| ",
        "memory of the stacked form beyond the parameters: 0 bytes",
        "fallback: none",
        "in both arms",
        "stacked / per layer, output tokens/s end to end: ",
    ):
        assert label in text
    overlap = found.stacked.spread("tokens_per_s").overlaps(found.per_layer.spread("tokens_per_s"))
    assert ("no measurable difference" in text) is overlap
    values = parsed(found)
    assert values["is_measurable"] is not overlap
    for name in ("context_write_us", "max_key_difference", "stacked_extra_bytes", "speedup"):
        assert name in values


def test_a_path_that_spoils_the_context_is_caught_by_its_rounds(draft_folder: Path) -> None:
    """Other guesses do not change the text, but they change what is accepted."""
    target = tiny_target(has_eos=False)
    prompts = [list(prompt.token_ids) for prompt in PATHS.prompts]
    texts = [ids + generate_alone(target, ids, PATHS.params.max_new_tokens) for ids in prompts]
    with oracle(texts, good=3, vocab=VOCAB):
        propose = DSparkProposer.propose

        def worse(self: DSparkProposer, request: BlockRequest) -> DraftBlock:
            block = propose(self, request)
            if self.context_kv_path == "stacked":
                return block
            return dataclasses.replace(block, draft_ids=(block.draft_ids + 1) % VOCAB)

        with patch.object(DSparkProposer, "propose", worse):
            found = compare_paths(draft_folder, trials=1)
    assert found.stacked.accept_length > 2
    assert found.per_layer.accept_length == 1
    assert found.agreement.is_exact
    assert not found.accept_lengths_agree
    assert not found.holds
    assert any(line.startswith("accept length: DIFFERENT") for line in found.lines())


def test_a_fallback_is_named(draft_folder: Path) -> None:
    built = tiny_engine(target=tiny_target(has_eos=False), draft_folder=draft_folder)
    assert built.draft is not None
    built.draft.network.attentions[0].v_proj.register_forward_hook(lambda m, args, output: None)
    found = compare_stacked(built, workload(2), trials=1, repetitions=1, device=CPU, report=silent)
    assert found.holds
    line = next(line for line in found.lines() if line.startswith("fallback: layer by layer"))
    assert "layers.0.self_attn.v_proj has hooks" in line


# -- one arm ---------------------------------------------------------------------------------


def test_throughput_of_one_arm(draft_folder: Path) -> None:
    target = tiny_target(has_eos=False)
    plain = measure_throughput(tiny_engine(target=target), workload(2), trials=2, report=silent)
    drafted = measure_throughput(
        tiny_engine(target=target, draft_folder=draft_folder), workload(2), trials=2, report=silent
    )
    assert plain.values()["tokens_per_s_target_alone"] == plain.values()["tokens_per_s"]
    assert drafted.values()["tokens_per_s_target_alone"] is None
    assert plain.arm.spread("output_tokens").median == 2 * 12
    assert plain.holds
    assert any("TTFT, p99" in line for line in drafted.lines())
