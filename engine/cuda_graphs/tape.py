"""Captures and replays PyTorch operators on machines without CUDA, for tests and dry runs.

As with a CUDA graph, a replay does not run Python: decisions are fixed by the capture, results
are written to the same memory, and reading a value on the host is an error. The tape does not keep
outside tensors alive: a replay fails if one is gone. As with graphs that share their memory, a
replay overwrites the outputs of later recordings with garbage.
"""

import dataclasses
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from engine.cuda_graphs.capture import Recording

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_READING = ("_local_scalar_dense", "nonzero", "masked_select", "unique")


class TapeCapturer:
    """See GraphCapturer."""

    name = "tape"

    def __init__(self) -> None:
        self._made: list[list[Tensor]] = []  # outputs in every recording's memory, oldest first

    def capture(self, run: Callable[[], T]) -> Recording[T]:
        run()  # a warm-up, as on CUDA
        tape = _Tape()
        with tape:
            outputs = run()
        self._made.append([x for x in _tensors(outputs) if _storage(x) in tape.storages])
        return _TapeRecording(tape, outputs, run, partial(self._spoil, after=len(self._made)))

    def _spoil(self, after: int) -> None:
        for outputs in self._made[after:]:
            for tensor in outputs:
                is_float = tensor.is_floating_point()
                tensor.fill_(torch.nan if is_float else torch.iinfo(tensor.dtype).max)


class _Call:
    """One operator, its arguments by reference, and the tensors of its results."""

    def __init__(self, func: Any, given: Any, result: Any, is_made: Callable[[Any], bool]) -> None:
        """given: args and kwargs; is_made: whether an earlier call of the tape made a tensor."""
        self._func = func
        leaves, self._form = _pytree.tree_flatten(given)
        self._leaves = [weakref.ref(x) if _is_tensor(x) and not is_made(x) else x for x in leaves]
        inputs = {_storage(x) for x in leaves if _is_tensor(x)}
        self._results = [
            (at, x)
            for at, x in enumerate(_pytree.tree_leaves(result))
            if _is_tensor(x) and _storage(x) not in inputs
        ]
        self.storages = {_storage(x) for _, x in self._results}
        self.does_something = bool(self._results) or func._schema.is_mutable

    def __call__(self) -> None:
        args, kwargs = _pytree.tree_unflatten([self._found(x) for x in self._leaves], self._form)
        leaves = _pytree.tree_leaves(self._func(*args, **kwargs))
        for at, result in self._results:
            result.copy_(leaves[at])

    def _found(self, leaf: Any) -> Any:
        found = leaf() if isinstance(leaf, weakref.ref) else leaf
        if found is None and leaf is not None:
            raise RuntimeError(f"{self._func} reads a tensor that no longer exists")
        return found


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []
        self._made: dict[int, Tensor] = {}  # by id(); held, so that no id() is reused

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if any(name in str(func) for name in _READING) or _chooses_by_mask(func, args):
            raise RuntimeError(f"{func} reads a value on the host, which no graph can capture")
        result = func(*args, **(kwargs or {}))
        call = _Call(func, (args, kwargs or {}), result, self._has_made)
        if call.does_something:
            self.calls.append(call)
        for made in filter(_is_tensor, _pytree.tree_leaves(result)):
            if not any(made is x for x in _pytree.tree_leaves((args, kwargs or {}))):
                self._made[id(made)] = made
        return result

    @property
    def storages(self) -> set[int]:
        """Return the storages of tensors that the tape made."""
        return {storage for call in self.calls for storage in call.storages}

    def _has_made(self, x: Any) -> bool:
        return id(x) in self._made


class _TapeRecording(Recording[T_co]):
    def __init__(
        self,
        tape: _Tape,
        outputs: T_co,
        run: Callable[[], object],
        spoil_later: Callable[[], None],
    ) -> None:
        self._tape = tape
        self._outputs = outputs
        self._run = run  # see Recording
        self._spoil_later = spoil_later

    @property
    def outputs(self) -> T_co:
        return self._outputs

    def replay(self) -> None:
        with torch.no_grad():
            for call in self._tape.calls:
                call()
            self._spoil_later()


def _chooses_by_mask(func: Any, args: Any) -> bool:
    """Whether the operator is x[mask], whose shape depends on values; x[mask] = y is not."""
    if func is not torch.ops.aten.index.Tensor:
        return False
    return any(index is not None and index.dtype == torch.bool for index in args[1])


def _tensors(outputs: object) -> Iterator[Tensor]:
    """Yield the tensors of nested sequences and dataclasses."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif dataclasses.is_dataclass(outputs):
        for field in dataclasses.fields(outputs):
            yield from _tensors(getattr(outputs, field.name))
    elif isinstance(outputs, list | tuple):
        for item in outputs:
            yield from _tensors(item)


def _is_tensor(x: object) -> bool:
    return isinstance(x, Tensor)


def _storage(x: Any) -> int:
    """Return the identity of a tensor's memory, which views share."""
    identity: int = x.untyped_storage()._cdata
    return identity
