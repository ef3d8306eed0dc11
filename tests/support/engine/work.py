"""Counts the work of engine steps."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from draft import BlockRequest, DSparkProposer
from engine import Request
from engine.build import Built
from engine.runner.batch import ScheduleBatch

# Whatever makes the host look at a tensor's numbers, which on a GPU means waiting for it.
READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")


@dataclass
class Work:
    """What one step did."""

    passes: list[tuple[int, int]] = field(default_factory=list)  # of the target: rows, logit rows
    blocks: list[int] = field(default_factory=list)  # of each draft pass
    writes: list[int] = field(default_factory=list)  # rows of each context write
    reads: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)  # of torch, views left out
    gathered_bytes: int = 0  # keys and values that were copied out of the pool
    committed: dict[str, int] = field(default_factory=dict)  # tokens, by request

    @property
    def num_committed(self) -> int:
        return sum(self.committed.values())


def run_counting(built: Built, requests: list[Request], *, max_steps: int = 500) -> list[Work]:
    """All requests at once, to their ends: the work of every step."""
    steps: list[Work] = []
    with torch.inference_mode():
        for request in requests:
            built.engine.add(request)
        while not built.engine.is_idle:
            work = Work()
            with _counting(built, work):
                events = built.engine.step()
            work.committed = {e.request_id: len(e.token_ids) for e in events}
            steps.append(work)
            assert len(steps) < max_steps
    return steps


@contextmanager
def _counting(built: Built, work: Work) -> Iterator[None]:
    def count_pass(batch: ScheduleBatch) -> None:
        work.passes.append((len(batch.token_ids), len(batch.logit_rows)))

    def count_block(request: BlockRequest) -> None:
        work.blocks.append(len(request.context_lens))

    def count_write(aux_hidden: Tensor, positions: Tensor, slots: Tensor) -> None:
        work.writes.append(len(slots))

    with ExitStack() as stack:
        stack.enter_context(_calls(type(built.runner), "forward", count_pass))
        if isinstance(built.proposer, DSparkProposer):
            stack.enter_context(_calls(DSparkProposer, "propose", count_block))
            stack.enter_context(_calls(DSparkProposer, "write_context", count_write))
        for name in READS:
            stack.enter_context(_calls(Tensor, name, lambda n=name: work.reads.update([n])))
        stack.enter_context(_Operations(built, work))
        yield


@contextmanager
def _calls(owner: Any, name: str, count: Callable[..., None]) -> Iterator[None]:
    """Within the block, call `count` before each call of this method, without its self."""
    method = getattr(owner, name)

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        count(*args, **options) if owner is not Tensor else count()
        return method(self, *args, **options)

    with patch.object(owner, name, counted):
        yield


class _Operations(TorchDispatchMode):
    """Every operation of torch that computes something, and what it takes out of the pool."""

    def __init__(self, built: Built, work: Work) -> None:
        super().__init__()
        pool, layers = built.pool, range(built.target.num_layers)
        storages = [pool.draft_keys, pool.draft_values]
        storages += [s(i) for i in layers for s in (pool.target_keys, pool.target_values)]
        self._pool = {s.untyped_storage().data_ptr() for s in storages if s.numel()}
        self._work = work

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self._work.operations[str(func)] += 1
            if self._is_gather(args, result):
                self._work.gathered_bytes += result.nbytes
        return result

    def _is_gather(self, args: Any, result: object) -> bool:
        """Reads from the pool into a tensor of its own; a store returns what it was given."""
        if not args or not isinstance(args[0], Tensor) or not isinstance(result, Tensor):
            return False
        source, made = (t.untyped_storage().data_ptr() for t in (args[0], result))
        return source in self._pool and made not in self._pool
