"""What things take on the device; each is a table of rows, told as JSON and as text."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.gpu.checks import draft_pool
from benchmarks.gpu.engines import context_kernel_of, engine_of
from benchmarks.gpu.pairs import RELEASED, TINY, Pair, make_pair
from benchmarks.gpu.rounds import PREFILL_CHUNK, measure_rounds
from benchmarks.gpu.timing import copy_bandwidth, in_turns, product_rate
from draft import ContextKVWriter
from engine.build import Built
from engine.pool_size import parameter_bytes

Row = dict[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    tokens: tuple[int, ...]
    batches: tuple[int, ...]
    accept_batches: tuple[int, ...]
    context: int
    steps: int
    turns: int
    copy_bytes: int
    product_size: int
    num_pages: int
    max_len: int


FULL = Effort(
    tokens=(1, 8, 64, 512, 4096),
    batches=(1, 8, 32, 128),
    accept_batches=(1, 32),
    context=256,
    steps=20,
    turns=20,
    copy_bytes=1 << 32,
    product_size=8192,
    num_pages=6144,
    max_len=2048,
)
DRY = Effort(
    tokens=(1, 8),
    batches=(1, 2),
    accept_batches=(2,),
    context=8,
    steps=2,
    turns=2,
    copy_bytes=1 << 20,
    product_size=64,
    num_pages=64,
    max_len=256,
)


def run_measures(device: torch.device, *, tiny: bool) -> Iterator[Table]:
    """All tables, the cheap ones first."""
    effort, shape = (DRY, TINY) if tiny else (FULL, RELEASED)
    dtype = torch.float32 if tiny else torch.bfloat16
    bandwidth = copy_bandwidth(device, effort.copy_bytes)
    rate = product_rate(device, dtype, effort.product_size)
    yield Table("device", [{"copy_gb_per_s": bandwidth / 1e9, "product_tflop_per_s": rate / 1e12}])
    pair = make_pair(shape, dtype=dtype, device=device, max_len=effort.max_len)
    yield Table("context write", _context_rows(pair, device, effort, bandwidth, rate))
    most = max(effort.batches)

    def engine(*, speculates: bool, graphs: str = "auto", max_running: int = most) -> Built:
        return engine_of(
            pair,
            device,
            speculates=speculates,
            graphs=graphs,
            num_pages=effort.num_pages,
            max_running_requests=max_running,
            prefill_chunk_tokens=PREFILL_CHUNK,
        )

    built = engine(speculates=True)
    yield Table("rounds", list(_round_rows(built, device, effort)))
    yield Table("verify pass", list(_verify_rows(built, device, effort, bandwidth)))
    yield Table("stacked against per layer, end to end", list(_mode_rows(built, device, effort)))
    yield Table("speed by accept length", list(_accept_rows(built, device, effort)))
    del built  # one pool at a time
    gc.collect()
    plain = engine(speculates=False)
    yield Table("plain decoding", list(_plain_rows(plain, device, effort)))
    del plain
    gc.collect()
    eager = engine(speculates=True, graphs="off", max_running=most)
    yield Table("rounds without graphs", list(_round_rows(eager, device, effort)))


def _context_rows(
    pair: Pair, device: torch.device, effort: Effort, bandwidth: float, rate: float
) -> list[Row]:
    """Medians of all three paths, beside the time of the bytes and of the operations."""
    network, config = pair.draft.network, pair.draft.config
    kernel = context_kernel_of(device)
    pool = draft_pool(pair, -(-max(effort.tokens) // 16) + 1, device)
    writers = {
        "per_layer": ContextKVWriter(network=network, pool=pool, mode="off"),
        "stacked": ContextKVWriter(network=network, pool=pool, mode="on"),
    }
    if kernel is not None:
        writers["fused"] = ContextKVWriter(network=network, pool=pool, mode="on", kernel=kernel)
    rows = []
    for count in effort.tokens:
        aux = torch.randn(count, config.aux_size, device=device).to(network.dtype)
        positions = torch.arange(count, device=device) % effort.max_len
        slots = torch.randperm(pool.num_slots, device=device)[:count]
        cases = {"taps_ms": partial(network.project_taps, aux)}  # part of all three
        for name, writer in writers.items():
            cases[f"{name}_ms"] = partial(writer.write, aux, positions, slots)
        row: Row = {"tokens": count}
        for name, case in cases.items():  # one by one: stacked writers take the weights over
            timed = in_turns({name: case}, turns=effort.turns, device=device)
            row[name] = timed[name].median
        num_bytes, operations = _context_work(pair, count)
        row |= {
            "bytes_floor_ms": 1000 * num_bytes / bandwidth,
            "operations_floor_ms": 1000 * operations / rate,
        }
        rows.append(row)
    return rows


def _context_work(pair: Pair, count: int) -> tuple[int, int]:
    """Bytes that must move, and operations, for `count` tokens: weights, taps, keys and values."""
    config, itemsize = pair.draft.config, pair.target.dtype.itemsize
    kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    weights = config.hidden_size * (config.aux_size + kv)
    return (weights + count * (config.aux_size + kv)) * itemsize, 2 * count * weights


def _round_rows(built: Built, device: torch.device, effort: Effort) -> Iterator[Row]:
    accepted = built.proposer.block_size // 2
    for batch in effort.batches:
        found = measure_rounds(
            built,
            device,
            batch=batch,
            context=effort.context,
            num_accepted=accepted,
            steps=effort.steps,
        )
        parts = {f"{name}_ms": spread.median for name, spread in found.parts_ms.items()}
        yield {
            "batch": batch,
            "accept_length": found.accept_length,
            "step_ms": found.step_ms.median,
            **parts,
            "rest_ms": found.step_ms.median - sum(parts.values()),
            "tokens_per_s": found.tokens_per_s,
        }


def _accept_rows(built: Built, device: torch.device, effort: Effort) -> Iterator[Row]:
    for batch in effort.accept_batches:
        for accepted in range(built.proposer.block_size + 1):
            found = measure_rounds(
                built,
                device,
                batch=batch,
                context=effort.context,
                num_accepted=accepted,
                steps=effort.steps,
            )
            yield {
                "batch": batch,
                "accept_length": found.accept_length,
                "step_ms": found.step_ms.median,
                "tokens_per_s": found.tokens_per_s,
            }


def _plain_rows(built: Built, device: torch.device, effort: Effort) -> Iterator[Row]:
    for batch in effort.batches:
        found = measure_rounds(
            built,
            device,
            batch=batch,
            context=effort.context,
            num_accepted=0,
            steps=effort.steps,
        )
        yield {
            "batch": batch,
            "step_ms": found.step_ms.median,
            "target_ms": found.parts_ms["target"].median,
            "tokens_per_s": found.tokens_per_s,
        }


def _mode_rows(built: Built, device: torch.device, effort: Effort) -> Iterator[Row]:
    accepted = built.proposer.block_size // 2
    for batch in effort.accept_batches:
        for mode in ("auto", "off", "auto", "off"):
            built.engine.set_context_kv(mode)  # type: ignore[arg-type]
            found = measure_rounds(
                built,
                device,
                batch=batch,
                context=effort.context,
                num_accepted=accepted,
                steps=effort.steps,
            )
            yield {
                "batch": batch,
                "path": built.proposer.context_kv_path,
                "context_ms": found.parts_ms["context"].median,
                "step_ms": found.step_ms.median,
                "tokens_per_s": found.tokens_per_s,
            }
    built.engine.set_context_kv("auto")


def _verify_rows(
    built: Built, device: torch.device, effort: Effort, bandwidth: float
) -> Iterator[Row]:
    """A pass reads every weight but the embedding's once: that much a second, beside a copy."""
    embedding = built.target.parts.embedding.get_parameter("weight")
    weights = parameter_bytes(built.target.model) - embedding.nbytes
    for batch in effort.batches:
        found = measure_rounds(
            built,
            device,
            batch=batch,
            context=effort.context,
            num_accepted=built.proposer.block_size,
            steps=effort.steps,
        )
        seconds = found.parts_ms["target"].median / 1000
        yield {
            "batch": batch,
            "target_ms": 1000 * seconds,
            "weights_gb": weights / 1e9,
            "gb_per_s": weights / seconds / 1e9,
            "share_of_copy": weights / seconds / bandwidth,
        }
