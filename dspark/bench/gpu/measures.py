"""Measures context writes and decode rounds on the device, as tables."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from draft import ContextKVWriter
from dspark.bench.gpu.checks import draft_pool
from dspark.bench.gpu.engines import context_kernel_of, engine_of
from dspark.bench.gpu.pairs import RELEASED, TINY, Pair, make_pair
from dspark.bench.gpu.results import Found, Row, table
from dspark.bench.gpu.rounds import DEFAULTS, GREEDY, PREFILL_CHUNK, Rounds, measure_rounds
from dspark.bench.gpu.timing import copy_bandwidth, in_turns, product_rate
from engine.api import EngineSamplingParams
from engine.build import Built
from engine.model_setup.pool_sizing import parameter_bytes


@dataclass(frozen=True, slots=True)
class Effort:
    """Sizes and repetitions of the measurements."""

    tokens: tuple[int, ...]
    batches: tuple[int, ...]
    mixed_chunk: int
    mixed_prompt: int
    long_context: int
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
    batches=(1, 8, 48, 64),
    mixed_chunk=512,
    mixed_prompt=4096,
    long_context=16_384,
    accept_batches=(1, 48),
    context=256,
    steps=20,
    turns=20,
    copy_bytes=1 << 32,
    product_size=8192,
    num_pages=6144,
    max_len=20_480,
)
DRY = Effort(
    tokens=(1, 8),
    batches=(1, 2),
    mixed_chunk=8,
    mixed_prompt=24,
    long_context=64,
    accept_batches=(2,),
    context=8,
    steps=2,
    turns=2,
    copy_bytes=1 << 20,
    product_size=64,
    num_pages=64,
    max_len=256,
)


def writes(device: torch.device, tiny: bool) -> Found:
    """Measure the limits of the device, and the context write in all forms."""
    effort, pair = _effort(tiny), _pair(device, tiny)
    yield from table("device", lambda: iter([_limits(pair, device, effort)]))
    yield from table("context write", lambda: _context_rows(pair, device, effort))


def speculation(device: torch.device, tiny: bool) -> Found:
    """Measure rounds with a draft and with graphs."""
    drafted = _bench(device, tiny)
    yield from table("rounds", drafted.by_part)
    yield from table("verify pass", drafted.verify_passes)
    yield from table("speed by accept length", drafted.by_accept_length)


def plain(device: torch.device, tiny: bool) -> Found:
    yield from table("plain decoding", _bench(device, tiny, speculates=False).plain)


def eager(device: torch.device, tiny: bool) -> Found:
    bench = _bench(device, tiny, graphs="off")
    yield from table("rounds without graphs", bench.by_part)
    # Graphs keep one path of the context write.
    yield from table("stacked against per layer, end to end", bench.by_context_writer)


def sampled(device: torch.device, tiny: bool) -> Found:
    """Measure what a request without fields gets, and steps that greedy rounds leave out."""
    bench = _bench(device, tiny, graphs="on", chunk=_effort(tiny).mixed_chunk)
    yield from table("sampled rounds", partial(bench.by_part, DEFAULTS))
    yield from table("rounds beside a prompt", bench.beside_a_prompt)
    yield from table("one long context among short ones", bench.with_a_long_context)


def backends(device: torch.device, tiny: bool) -> Found:
    """Measure the same rounds over each attention backend that is installed."""
    for name in ("flashinfer", "triton") if device.type == "cuda" else ("reference",):
        if device.type != "cuda" or find_spec(name) is not None:
            bench = _bench(device, tiny, attention_backend=name)
            yield from table(f"rounds, attention by {name}", bench.by_part)
            yield from table(f"one long context, attention by {name}", bench.with_a_long_context)


def _effort(tiny: bool) -> Effort:
    return DRY if tiny else FULL


def _pair(device: torch.device, tiny: bool) -> Pair:
    shape, dtype = (TINY, torch.float32) if tiny else (RELEASED, torch.bfloat16)
    return make_pair(shape, dtype=dtype, device=device, max_len=_effort(tiny).max_len)


def _bench(
    device: torch.device,
    tiny: bool,
    *,
    speculates: bool = True,
    graphs: str = "auto",
    attention_backend: str = "auto",
    chunk: int = PREFILL_CHUNK,
) -> "_Bench":
    effort = _effort(tiny)
    built = engine_of(
        _pair(device, tiny),
        device,
        speculates=speculates,
        graphs=graphs,
        attention_backend=attention_backend,
        num_pages=effort.num_pages,
        max_running_requests=max(effort.batches) + 1,
        prefill_chunk_tokens=chunk,
    )
    return _Bench(built, device, effort)


def _limits(pair: Pair, device: torch.device, effort: Effort) -> Row:
    bandwidth = copy_bandwidth(device, effort.copy_bytes)
    rate = product_rate(device, pair.target.dtype, effort.product_size)
    return {"copy_gb_per_s": bandwidth / 1e9, "product_tflop_per_s": rate / 1e12}


def _context_rows(pair: Pair, device: torch.device, effort: Effort) -> Iterator[Row]:
    """Yield medians of all three paths, with the lower bounds by bytes and by operations."""
    bandwidth = copy_bandwidth(device, effort.copy_bytes)
    rate = product_rate(device, pair.target.dtype, effort.product_size)
    network, config = pair.draft.network, pair.draft.config
    kernel = context_kernel_of(device)
    pool = draft_pool(pair, -(-max(effort.tokens) // 16) + 1, device)
    writers = {
        "per_layer": ContextKVWriter(network=network, pool=pool, mode="off"),
        "stacked": ContextKVWriter(network=network, pool=pool, mode="on"),
    }
    if kernel is not None:
        writers["fused"] = ContextKVWriter(network=network, pool=pool, mode="on", kernel=kernel)
    for count in effort.tokens:
        aux = torch.randn(count, config.aux_size, device=device).to(network.dtype)
        positions = torch.arange(count, device=device) % effort.max_len
        slots = torch.randperm(pool.num_slots, device=device)[:count]
        cases: dict[str, Callable[[], object]] = {
            "taps_ms": partial(network.project_taps, aux)
        }  # part of all three
        for name, writer in writers.items():
            cases[f"{name}_ms"] = partial(writer.write_context_kv, aux, positions, slots)
        row: Row = {"tokens": count}
        for name, case in cases.items():  # one by one: a stacked writer takes over the weights
            timed = in_turns({name: case}, turns=effort.turns, device=device)
            row[name] = timed[name].median
        num_bytes, operations = _context_work(pair, count)
        row |= {
            "bytes_floor_ms": 1000 * num_bytes / bandwidth,
            "operations_floor_ms": 1000 * operations / rate,
        }
        yield row


def _context_work(pair: Pair, count: int) -> tuple[int, int]:
    """Return the fewest bytes and operations for `count` tokens: weights, taps, keys, values."""
    config, itemsize = pair.draft.config, pair.target.dtype.itemsize
    kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    weights = config.hidden_size * (config.aux_size + kv)
    return (weights + count * (config.aux_size + kv)) * itemsize, 2 * count * weights


@dataclass(frozen=True, slots=True)
class _Bench:
    """Measures the rounds of one engine."""

    built: Built
    device: torch.device
    effort: Effort

    @property
    def block_size(self) -> int:
        return self.built.proposer.block_size

    def rounds(self, batch: int, *, num_accepted: int, **options: Any) -> Rounds:
        """See measure_rounds for the options."""
        return measure_rounds(
            self.built,
            self.device,
            batch=batch,
            context=self.effort.context,
            num_accepted=num_accepted,
            steps=self.effort.steps,
            **options,
        )

    def beside_a_prompt(self) -> Iterator[Row]:
        for batch in self.effort.batches:
            half = self.block_size // 2
            alone = self.rounds(batch, num_accepted=half)
            beside = self.rounds(batch, num_accepted=half, prompt_beside=self.effort.mixed_prompt)
            yield {
                "batch": batch,
                "chunk": self.effort.mixed_chunk,
                "alone_ms": alone.step_ms.median,
                "step_ms": beside.step_ms.median,
            }

    def with_a_long_context(self) -> Iterator[Row]:
        for batch in self.effort.batches:
            half = self.block_size // 2
            short = self.rounds(batch, num_accepted=half)
            mixed = self.rounds(batch, num_accepted=half, long_context=self.effort.long_context)
            yield {
                "batch": batch,
                "long_context": self.effort.long_context,
                "short_target_ms": short.parts_ms["target"].median,
                "target_ms": mixed.parts_ms["target"].median,
                **_speed(mixed),
            }

    def by_part(self, params: EngineSamplingParams = GREEDY) -> Iterator[Row]:
        """Yield the parts of a round, with half of each block accepted."""
        for batch in self.effort.batches:
            found = self.rounds(batch, num_accepted=self.block_size // 2, params=params)
            parts = {f"{name}_ms": spread.median for name, spread in found.parts_ms.items()}
            yield {
                "batch": batch,
                "accept_length": found.accept_length,
                **_speed(found),
                **parts,
                "rest_ms": found.step_ms.median - sum(parts.values()),
            }

    def by_accept_length(self) -> Iterator[Row]:
        for batch in self.effort.accept_batches:
            for accepted in range(self.block_size + 1):
                found = self.rounds(batch, num_accepted=accepted)
                yield {"batch": batch, "accept_length": found.accept_length, **_speed(found)}

    def plain(self) -> Iterator[Row]:
        for batch in self.effort.batches:
            found = self.rounds(batch, num_accepted=0)
            yield {
                "batch": batch,
                **_speed(found),
                "target_ms": found.parts_ms["target"].median,
            }

    def by_context_writer(self) -> Iterator[Row]:
        """Yield stacked and per-layer rounds in turn, twice."""
        for batch in self.effort.accept_batches:
            for mode in ("auto", "off", "auto", "off"):
                self.built.engine.set_context_kv(mode)
                found = self.rounds(batch, num_accepted=self.block_size // 2)
                yield {
                    "batch": batch,
                    "path": self.built.proposer.context_kv_path,
                    "context_ms": found.parts_ms["context"].median,
                    **_speed(found),
                }
        self.built.engine.set_context_kv("auto")

    def verify_passes(self) -> Iterator[Row]:
        """Yield the weight bytes per second of a pass, without the embedding, against a copy."""
        bandwidth = copy_bandwidth(self.device, self.effort.copy_bytes)
        embedding = self.built.target.parts.embedding.get_parameter("weight")
        weights = parameter_bytes(self.built.target.model) - embedding.nbytes
        for batch in self.effort.batches:
            found = self.rounds(batch, num_accepted=self.block_size)
            seconds = found.parts_ms["target"].median / 1000
            yield {
                "batch": batch,
                "target_ms": 1000 * seconds,
                "weights_gb": weights / 1e9,
                "gb_per_s": weights / seconds / 1e9,
                "share_of_copy": weights / seconds / bandwidth,
            }


def _speed(found: Rounds) -> Row:
    return {"step_ms": found.step_ms.median, "tokens_per_s": found.tokens_per_s}
