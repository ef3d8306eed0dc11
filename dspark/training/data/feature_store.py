"""Stores hidden states on disk in bfloat16, in shards that are written atomically."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from draft.atomic_write import whole_file
from dspark.training.data.examples import HiddenStates, TokenSequence, rounded

logger = logging.getLogger(__name__)

_PARTS = ("taps", "final", "log_normaliser")  # in the order of HiddenStates
_SHARD_TOKENS = 1 << 14
_SHARDS = "shard-*.safetensors"


class FeatureStore:
    """Hidden states of sequences, by the hash of the sequence.

        shard-00000.safetensors   name0.taps [T0, A]  name0.final [T0, E]
                                  name0.log_normaliser [T0]  name1.taps ...

    States may be added in any order: while the engine answers, or by a pass over missing ones.
    An interrupted run loses states that are not yet in a shard.
    """

    def __init__(
        self,
        *,
        folder: Path,
        identity: str,
        budget_bytes: int,
        shard_tokens: int = _SHARD_TOKENS,
    ) -> None:
        """Opens the store and removes shards with another `identity` (target and taps).

        budget_bytes: limit of all shards together.
        """
        self._folder = folder
        self._identity = identity
        self._budget = budget_bytes
        self._shard_tokens = shard_tokens
        self._shard_of: dict[str, Path] = {}  # by name
        self._pending: dict[str, HiddenStates] = {}  # not yet on disk
        self._num_bytes = 0
        for path in sorted(folder.glob(_SHARDS)):
            self._register(path)

    def __contains__(self, sequence: TokenSequence) -> bool:
        name = sequence.name
        return name in self._shard_of or name in self._pending

    def add(self, sequence: TokenSequence, hidden: HiddenStates) -> bool:
        """Store the states of a sequence; return False if they exceed the budget.

        Raises OSError if the disk is full; complete shards stay.
        """
        if sequence in self:
            return True
        states = rounded(hidden)
        size = sum(tensor.nbytes for tensor in _tensors(states))
        if self._num_bytes + size > self._budget:
            return False
        self._pending[sequence.name] = states
        self._num_bytes += size
        if sum(len(states.final) for states in self._pending.values()) >= self._shard_tokens:
            self.flush()
        return True

    def flush(self) -> None:
        """Write the pending states as a shard. Raises OSError and then keeps them pending."""
        if not self._pending:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._next_path()
        tensors = {
            f"{name}.{part}": tensor.contiguous()
            for name, states in self._pending.items()
            for part, tensor in zip(_PARTS, _tensors(states), strict=True)
        }
        with _as_os_error(path), whole_file(path) as partial:
            save_file(tensors, partial, metadata={"identity": self._identity})
        self._shard_of |= dict.fromkeys(self._pending, path)
        self._pending.clear()

    def find(self, sequence: TokenSequence) -> HiddenStates | None:
        """Return the states of a sequence, rounded; None if missing."""
        name = sequence.name
        if name in self._pending:
            return self._pending[name]
        path = self._shard_of.get(name)
        if path is None:
            return None
        with safe_open(path, framework="pt") as file:
            return HiddenStates(*(file.get_tensor(f"{name}.{part}") for part in _PARTS))

    def keep_only(self, sequences: Iterable[TokenSequence]) -> None:
        """Remove the shards that contain none of these sequences."""
        kept = {sequence.name for sequence in sequences}
        used = {path for name, path in self._shard_of.items() if name in kept}
        for path in set(self._shard_of.values()) - used:
            self._num_bytes -= path.stat().st_size
            path.unlink()
        self._shard_of = {name: path for name, path in self._shard_of.items() if path in used}

    def _register(self, path: Path) -> None:
        names = _names_in(path, self._identity)
        if not names:
            logger.info("removed %s: hidden states of another target or other taps", path)
            path.unlink()
            return
        self._shard_of |= dict.fromkeys(names, path)
        self._num_bytes += path.stat().st_size

    def _next_path(self) -> Path:
        numbers = [int(path.stem.partition("-")[2]) for path in self._folder.glob(_SHARDS)]
        return self._folder / f"shard-{max(numbers, default=-1) + 1:05d}.safetensors"


def _tensors(hidden: HiddenStates) -> tuple[Tensor, ...]:
    return tuple(getattr(hidden, part) for part in _PARTS)


def _names_in(path: Path, identity: str) -> set[str]:
    """Return the names in a shard; none if it is unreadable or has another identity."""
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("identity") != identity:
                return set()
            return {key.partition(".")[0] for key in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError):
        return set()


@contextmanager
def _as_os_error(path: Path) -> Iterator[None]:
    """Raise OSError for a full disk, also when safetensors finds it."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error
