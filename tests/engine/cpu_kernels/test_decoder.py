"""The kernels' decoder pass computes what the model computes, or is not used for a reason."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from engine.build import Built
from engine.cpu_kernels.compiling import CpuKernelsUnavailable, load_kernels
from engine.cpu_kernels.decoder import CpuDecoder
from engine.cpu_kernels.setup import prepare_cpu_kernels
from engine.loading.target import LoadedTarget, dense_reference
from engine.runner.batch import batch_of_rows
from kv_pool import KVLayout, KVPool, KVShape
from tests.support.engine.cpu_kernels import kernels_or_skip
from tests.support.engine.running import generate_alone, greedy_requests, run_all
from tests.support.engine.tiny_models import (
    CPU,
    LAYERS,
    VOCAB,
    tiny_engine,
    tiny_target,
    write_tiny_draft,
)

SUPPORTED = ["llama", "mistral_window", "qwen3", "gemma3"]
TAPS = (-1, 0, 3)


def _pool(num_pages: int, page_size: int) -> KVPool:
    layers = (KVShape(2, 16, 16, torch.float32),) * LAYERS
    return KVPool(KVLayout(page_size, CPU, target=layers), num_pages=num_pages)


def _decoder(target: LoadedTarget, pool: KVPool, *, num_threads: int = 1) -> CpuDecoder:
    return CpuDecoder(
        kernels=kernels_or_skip(),
        model=target.model,
        pool=pool,
        tap_layers=TAPS,
        max_len=target.max_len,
        max_rows=160,
        num_threads=num_threads,
    )


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_long_packed_and_paged_pass_equals_the_dense_model(name: str, num_threads: int) -> None:
    """Contexts of several key blocks, chunks larger than one attention task, shuffled pages."""
    target = tiny_target(name)
    lengths = (150, 97)
    texts = [torch.randint(0, VOCAB, (n,)) for n in lengths]
    with torch.inference_mode():
        dense = [dense_reference(target.model, TAPS, ids[None]) for ids in texts]
    pool = _pool(num_pages=64, page_size=4)
    pages = torch.randperm(64).tolist()
    tables = [pages[:38], [*pages[38:63], -1, 10**9]]
    decoder = _decoder(target, pool, num_threads=num_threads)
    for pieces in ([(0, 0, 120)], [(0, 120, 149), (1, 0, 91)], [(0, 149, 150), (1, 91, 97)]):
        with torch.inference_mode():
            logits, taps = decoder.run(
                batch_of_rows([(texts[b], tables[b], i, j) for b, i, j in pieces], page_size=4)
            )
        expected = torch.cat([dense[b][0][i:j] for b, i, j in pieces])
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)
        expected = torch.cat([dense[b][1][i:j] for b, i, j in pieces])
        torch.testing.assert_close(taps, expected, atol=2e-4, rtol=1e-4)


def test_slots_after_a_sequence_and_unread_pages_do_not_matter() -> None:
    target = tiny_target("llama")
    ids = torch.randint(0, VOCAB, (10,))
    pool = _pool(num_pages=8, page_size=4)
    for layer in range(LAYERS):
        pool.target_keys(layer).fill_(float("nan"))
        pool.target_values(layer).fill_(float("nan"))
    with torch.inference_mode():
        expected, _ = dense_reference(target.model, TAPS, ids[None])
        logits, _ = _decoder(target, pool).run(
            batch_of_rows([(ids, [5, 2, 7], 0, 10)], page_size=4)
        )
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_only_the_requested_logits_are_computed() -> None:
    target = tiny_target("llama")
    ids = torch.randint(0, VOCAB, (9,))
    batch = batch_of_rows([(ids, [0, 1, 2], 0, 9)], page_size=4)
    object.__setattr__(batch, "logit_rows", torch.tensor([8, 2]))
    with torch.inference_mode():
        expected, _ = dense_reference(target.model, TAPS, ids[None])
        logits, taps = _decoder(target, _pool(8, 4)).run(batch)
    assert taps.shape[0] == 9
    torch.testing.assert_close(logits, expected[[8, 2]], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gemma4", "a projection is missing"),
        ("qwen3_moe", "'Qwen3MoeSparseMoeBlock' object has no attribute 'gate_proj'"),
    ],
)
def test_transformers_runs_an_unsupported_model_and_the_reason_is_reported(
    name: str, reason: str
) -> None:
    small = _small_steps(name)
    assert small["path"] == "transformers"
    assert reason in str(small["reason"])


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_kernels_run_a_supported_model(name: str) -> None:
    kernels_or_skip()
    assert _small_steps(name) == {"path": "native", "reason": None}


def test_the_kernels_can_be_switched_off() -> None:
    small = _small_steps("llama", native_kernels="off")
    assert small == {"path": "transformers", "reason": "switched off"}


def test_a_kernel_pass_that_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels_or_skip()
    run = CpuDecoder.run

    def wrong(self: CpuDecoder, batch: object) -> tuple[torch.Tensor, torch.Tensor]:
        logits, taps = run(self, batch)  # type: ignore[arg-type]
        return logits, taps + 1e-2

    monkeypatch.setattr(CpuDecoder, "run", wrong)
    small = _small_steps("llama", draft=True)
    assert small == {"path": "transformers", "reason": "it does not agree with the model"}


def test_without_a_compiler_the_reason_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(CpuKernelsUnavailable, match=r"no C\+\+ compiler found"):
        load_kernels(tmp_path)


def test_a_compiler_that_fails_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("engine.cpu_kernels.compiling._FLAGS", ("-fno-such-flag-exists",))
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path))
    with pytest.raises(CpuKernelsUnavailable, match="fails:"):
        load_kernels(tmp_path)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_compiler_that_hangs_is_stopped_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1.0 || exec sleep 600\n')
    compiler.chmod(0o755)
    monkeypatch.setattr("engine.cpu_kernels.compiling.cxx_compiler", lambda: str(compiler))
    monkeypatch.setattr("engine.cpu_kernels.compiling._MOST_SECONDS", 0.5)
    with pytest.raises(CpuKernelsUnavailable, match=r"c\+\+ is not done after 0\.5 seconds"):
        load_kernels(tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_the_library_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = kernels_or_skip()

    def never(*args: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("engine.cpu_kernels.compiling._compile", never)
    assert load_kernels(first.path.parents[1]).path == first.path


@pytest.mark.parametrize(
    ("dtype", "wanted", "reason"),
    [(torch.float16, True, "no code for torch.float16"), (torch.float32, False, "switched off")],
)
def test_an_unsupported_dtype_or_setting_is_reported(
    dtype: torch.dtype, wanted: bool, reason: str
) -> None:
    with pytest.raises(CpuKernelsUnavailable, match=reason):
        prepare_cpu_kernels(wanted=wanted, dtype=dtype, device=CPU)


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.parametrize("max_len", [2, 9])
def test_the_kernels_run_where_sequences_are_shorter_than_the_self_check(
    name: str, max_len: int
) -> None:
    kernels_or_skip()
    built = tiny_engine(target=tiny_target(name, max_len=max_len, has_eos=False))
    assert _small_steps_of(built) == {"path": "native", "reason": None}
    found = run_all(built, greedy_requests([[5]], max_len - 1))["0"][0]
    assert found == generate_alone(tiny_target(name, has_eos=False), [5], max_len - 1)


def _small_steps(name: str, *, draft: bool = False, **settings: object) -> dict[str, object]:
    with TemporaryDirectory() as folder:
        built = tiny_engine(
            target=tiny_target(name),
            draft_folder=write_tiny_draft(Path(folder)) if draft else None,
            **settings,
        )
    return _small_steps_of(built)


def _small_steps_of(built: Built) -> dict[str, object]:
    target = built.engine.info.details["target"]
    assert isinstance(target, dict)
    small: dict[str, object] = target["small_steps"]
    return small
