"""FlashInfer gets arrays that describe the batch, one plan per step, and only supported options."""

import logging

import pytest
import torch
from torch import Tensor

from kv_pool import AttentionPlan, FixedBackend, NoFixedPlan, ReferenceAttention
from kv_pool.attention import flashinfer
from kv_pool.attention.flashinfer import FlashInferAttention
from kv_pool.attention.flashinfer_workspace import WORKSPACE_BYTES, Workspace, workspace_bytes
from tests.support.kv_pool.fake_flashinfer import FakeWrapper, scratch_bytes
from tests.support.kv_pool.oracle import Batch, Heads, Options, attend_dense, make_batch

CPU = torch.device("cpu")
HEADS = Heads(4, 2, 64, 64)
OPTIONS = {
    "causal": Options(),
    "not causal": Options(causal=False),
    "window": Options(window=5),
    "window of one": Options(window=1),
    "window, not causal": Options(window=5, causal=False),
    "softcap": Options(softcap=0.7),
    "window and softcap": Options(window=7, softcap=0.7),
}


class Rig:
    """Holds a backend and the wrappers that it created."""

    def __init__(self, page_size: int) -> None:
        self.made: list[FakeWrapper] = []
        self.backend = FlashInferAttention(
            page_size=page_size,
            workspace=Workspace(CPU, num_bytes=64),
            make_wrapper=self._make,
            fallback=ReferenceAttention(page_size=page_size, device=CPU),
        )

    def _make(self, *args: object, **kwargs: object) -> FakeWrapper:
        self.made.append(FakeWrapper(*args, **kwargs))  # type: ignore[arg-type]
        return self.made[-1]

    def plan(self, batch: Batch, options: Options) -> AttentionPlan:
        return self.backend.plan(
            query_lens=batch.query_lens,
            kv_lens=batch.kv_lens,
            page_tables=batch.page_tables,
            causal=options.causal,
        )


def attend(plan: AttentionPlan, batch: Batch, options: Options) -> Tensor:
    return plan.attend(batch.query, batch.keys, batch.values, options.scaled(0.05))


def half_batch(**changes: object) -> Batch:
    return make_batch(
        **{  # type: ignore[arg-type]
            "query_lens": [1, 20, 6, 1],
            "kv_lens": [9, 23, 6, 1],
            "page_size": 4,
            "heads": HEADS,
            "dtype": torch.float16,
            "unwritten": float("nan"),
            **changes,
        }
    )


def assert_same(got: Tensor, batch: Batch, options: Options, tolerance: float = 5e-3) -> None:
    want = attend_dense(batch, options, scale=0.05)
    torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_its_arrays_and_options_describe_the_batch(page_size: int, options: Options) -> None:
    batch = half_batch(page_size=page_size)
    rig = Rig(page_size)
    assert_same(attend(rig.plan(batch, options), batch, options), batch, options)
    assert len(rig.made) == 1


def test_a_step_is_planned_once_for_each_kind_of_layer() -> None:
    rig = Rig(4)
    windowed = Options(window=5)
    for step in range(2):
        batch = half_batch(seed=step)
        plan = rig.plan(batch, Options())
        for _ in range(3):
            assert_same(attend(plan, batch, Options()), batch, Options())
            assert_same(attend(plan, batch, windowed), batch, windowed)
    assert [wrapper.num_plans for wrapper in rig.made] == [2, 2]


@pytest.mark.parametrize(
    ("batch", "options", "reason"),
    [
        (half_batch(dtype=torch.float32), Options(), "torch.float32 over torch.float32"),
        (half_batch(heads=Heads(4, 2, 8, 8)), Options(), "heads of 8 and 8"),
        (half_batch(heads=Heads(4, 2, 64, 128)), Options(), "heads of 64 and 128"),
        (half_batch(), Options(sinks=torch.zeros(4)), "attention sinks"),
    ],
)
def test_unsupported_options_use_the_fallback_and_are_logged_once(
    batch: Batch, options: Options, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(4)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert_same(attend(rig.plan(batch, options), batch, options), batch, options)
    assert not rig.made
    assert [record.getMessage() for record in caplog.records] == [
        f"attention by reference instead of flashinfer: {reason}"
    ]
    fixed = rig.backend.fixed_plan(num_sequences=4, query_len=1, max_pages=9, causal=True)
    fixed.update(kv_lens=[1] * 4, page_tables=[[0]] * 4)
    with pytest.raises(NoFixedPlan, match="flashinfer has no kernel for"):
        attend(fixed, batch, options)


@pytest.mark.parametrize("garbage", [-1, 10**6])
def test_nothing_past_a_sequence_is_read(garbage: int) -> None:
    batch = half_batch()
    want = attend(Rig(4).plan(batch, Options()), batch, Options())
    batch.page_tables = [[*table, garbage] for table in batch.page_tables]
    assert torch.equal(attend(Rig(4).plan(batch, Options()), batch, Options()), want)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_fixed_plan_follows_its_updates_in_the_same_memory(options: Options) -> None:
    rig = Rig(4)
    plan = rig.backend.fixed_plan(num_sequences=2, query_len=6, max_pages=20, causal=options.causal)
    addresses = {name: buffer.data_ptr() for name, buffer in plan._buffers.items()}
    for kv_lens in ([30, 9], [7, 80]):
        batch = half_batch(query_lens=[6, 6], kv_lens=kv_lens)
        plan.update(kv_lens=batch.kv_lens, page_tables=batch.page_tables)
        for _ in range(2):
            assert_same(attend(plan, batch, options), batch, options)
    assert [wrapper.num_plans for wrapper in rig.made] == [2]
    assert {name: buffer.data_ptr() for name, buffer in plan._buffers.items()} == addresses


@pytest.mark.parametrize(
    "heads", [(32, 8, 128), (40, 8, 128), (64, 8, 128), (8, 8, 256), (16, 2, 64)]
)
@pytest.mark.parametrize("width", [1, 7, 8, 33])
def test_the_plan_of_every_capture_size_fits_into_the_workspace(
    heads: tuple[int, int, int], width: int
) -> None:
    """On an H200."""
    num_heads, num_kv_heads, head_dim = heads
    for size in (1, 2, 4, 16, 64, 128, 256):
        shape = {
            "num_qo_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "multiprocessors": 132,
        }
        given = workspace_bytes(**shape, fixed_rows=size * width, fixed_sequences=size)
        assert scratch_bytes(query_lens=[width] * size, **shape) <= given


def test_the_initial_workspace_holds_128_windows_of_the_released_pair() -> None:
    needed = workspace_bytes(
        num_qo_heads=32,
        num_kv_heads=8,
        head_dim=128,
        multiprocessors=132,
        fixed_rows=128 * 8,
        fixed_sequences=128,
    )
    assert needed <= WORKSPACE_BYTES


def test_a_workspace_grows_and_earlier_plans_keep_theirs() -> None:
    workspace = Workspace(CPU, num_bytes=100)
    small = workspace.at_least(100)
    large = workspace.at_least(101)
    assert small.numel() == 100
    assert large.numel() >= 101
    assert large.data_ptr() != small.data_ptr()
    assert workspace.at_least(50).data_ptr() == large.data_ptr()


def test_a_long_compilation_of_kernels_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 93.0, 93.0, 93.1])
    monkeypatch.setattr(flashinfer.time, "perf_counter", lambda: next(times))
    rig, batch = Rig(4), half_batch()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            attend(rig.plan(batch, Options()), batch, Options())
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == "flashinfer built its kernels for heads of 64 in torch.float16 in 93 s"


def test_it_is_a_backend_for_graphs() -> None:
    assert isinstance(Rig(4).backend, FixedBackend)


def test_page_ids_are_on_the_device_and_lengths_on_the_host_when_it_plans() -> None:
    """The wrapper copies host page ids synchronously, and reads lengths on the host."""
    kinds: list[list[str]] = []

    class Planned:
        def __init__(self, *args: object, **kwargs: object) -> None:
            pass

        def plan(self, *arrays: Tensor, **kind: object) -> None:
            kinds.append([array.device.type for array in arrays])

        def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor) -> Tensor:
            return out

    meta = torch.device("meta")
    backend = FlashInferAttention(
        page_size=4,
        workspace=Workspace(meta, num_bytes=64),
        make_wrapper=Planned,
        fallback=ReferenceAttention(page_size=4, device=meta),
    )
    plan = backend.plan(query_lens=[1], kv_lens=[5], page_tables=[[2, 0]], causal=True)
    fixed = backend.fixed_plan(num_sequences=1, query_len=1, max_pages=3, causal=True)
    fixed.update(kv_lens=[5], page_tables=[[2, 0]])
    query, pool = (torch.empty(n, 4, 64, dtype=torch.float16, device=meta) for n in (1, 12))
    for each in (plan, fixed):
        each.attend(query, pool, pool, Options().scaled(0.1))
    assert kinds == [["cpu", "cpu", "meta", "cpu"]] * 2
