"""Calls of FlashInfer bind against its own signatures, and the fake wrapper has these too."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from kv_pool import ReferenceAttention
from kv_pool.attention.flashinfer import FlashInferAttention
from kv_pool.attention.flashinfer_workspace import Workspace
from tests.support.kv_pool import flashinfer_signatures as flashinfer
from tests.support.kv_pool.fake_flashinfer import FakeWrapper
from tests.support.kv_pool.oracle import Heads, Options, make_batch

CPU = torch.device("cpu")
Calls = list[tuple[str, tuple[Any, ...], dict[str, Any]]]


class _Recorded(FakeWrapper):
    """Keeps the arguments of every call."""

    calls: Calls

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append(("__init__", args, kwargs))
        super().__init__(*args, **kwargs)

    def plan(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append(("plan", args, kwargs))
        super().plan(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.calls.append(("run", args, kwargs))
        return super().run(*args, **kwargs)


@pytest.fixture(scope="module")
def calls() -> Calls:
    """Every call of an eager plan and of one for graphs, with and without options."""
    made: Calls = []
    kind = type("Recorded", (_Recorded,), {"calls": made})
    batch = make_batch(
        query_lens=[6, 6],
        kv_lens=[30, 9],
        page_size=4,
        heads=Heads(4, 2, 64, 64),
        dtype=torch.float16,
    )
    backend = FlashInferAttention(
        page_size=4,
        workspace=Workspace(CPU, num_bytes=64),
        make_wrapper=kind,
        fallback=ReferenceAttention(page_size=4, device=CPU),
    )
    for options in (Options(), Options(causal=False), Options(window=7, softcap=0.7)):
        tables = {"kv_lens": batch.kv_lens, "page_tables": batch.page_tables}
        fixed = backend.fixed_plan(
            num_sequences=2, query_len=6, max_pages=20, causal=options.causal
        )
        fixed.update(**tables)
        eager = backend.plan(query_lens=batch.query_lens, causal=options.causal, **tables)
        for plan in (fixed, eager):
            plan.attend(batch.query, batch.keys, batch.values, options.scaled(0.05))
    return made


def assert_bound(calls: Calls, declared: flashinfer.Signatures) -> None:
    assert {name for name, _, _ in calls} == set(flashinfer.METHODS)
    for name, args, kwargs in calls:
        declared[name].bind(None, *args, **kwargs)


def assert_alike(fake: inspect.Signature, declared: inspect.Signature) -> None:
    """Check that the fake takes the same positional arguments, and keywords that exist."""
    for at, (name, parameter) in enumerate(fake.parameters.items()):
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            assert name in declared.parameters, name
        else:
            assert list(declared.parameters)[at] == name
    for name, parameter in declared.parameters.items():
        is_variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not is_variable:
            assert name in fake.parameters, f"the fake lacks {name}, which must be given"


def test_calls_bind_and_the_fake_is_held_to_the_lowest_allowed_version(calls: Calls) -> None:
    declared = flashinfer.signatures(flashinfer.stored())
    assert "uniform_q_len" in declared["plan"].parameters
    assert_bound(calls, declared)
    for name in flashinfer.METHODS:
        assert_alike(inspect.signature(getattr(FakeWrapper, name)), declared[name])


def test_a_call_that_upstream_would_refuse_does_not_bind(calls: Calls) -> None:
    declared = flashinfer.signatures(flashinfer.stored())
    name, args, kwargs = next(call for call in calls if call[0] == "plan")
    with pytest.raises(TypeError, match="uniform_len"):
        declared[name].bind(None, *args, **kwargs, uniform_len=8)
    with pytest.raises(TypeError, match="missing a required argument"):
        declared[name].bind(None, *args[:2])


@pytest.mark.cuda
def test_the_stored_signatures_are_those_of_the_lowest_allowed_wheel(tmp_path: Path) -> None:
    wheel = flashinfer.fetch_wheel(f"=={flashinfer.lowest_version()}", tmp_path)
    assert flashinfer.declared_in(wheel) == flashinfer.stored()


@pytest.mark.cuda
def test_calls_bind_against_the_newest_allowed_wheel(calls: Calls, tmp_path: Path) -> None:
    wheel = flashinfer.fetch_wheel(str(flashinfer.allowed_versions().specifier), tmp_path)
    declared = flashinfer.signatures(flashinfer.declared_in(wheel))
    assert "uniform_q_len" in declared["plan"].parameters
    assert_bound(calls, declared)
    for name in flashinfer.METHODS:
        assert_alike(inspect.signature(getattr(FakeWrapper, name)), declared[name])
