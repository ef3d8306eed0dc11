"""Hidden states on disk: bfloat16, some sequences a file, each file whole or not there."""

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
    """Sequences' hidden states, found by what the sequences are and not by where they stood.

        shard-00000.safetensors   name0.taps [T0, A]  name0.final [T0, E]
                                  name0.log_normaliser [T0]  name1.taps ...

    So whoever has them may add them, in any order: the engine while it answers, or a pass over
    what is missing. A kill costs what is not yet in a shard.
    """

    def __init__(
        self,
        *,
        folder: Path,
        identity: str,
        budget_bytes: int,
        shard_tokens: int = _SHARD_TOKENS,
    ) -> None:
        """identity names the target and its taps; shards that have another are removed.

        budget_bytes: of all shards together.
        """
        self._folder = folder
        self._identity = identity
        self._budget = budget_bytes
        self._shard_tokens = shard_tokens
        self._shard_of: dict[str, Path] = {}  # by name
        self._waiting: dict[str, HiddenStates] = {}  # not yet on disk
        self._num_bytes = 0
        for path in sorted(folder.glob(_SHARDS)):
            self._take_over(path)

    def __contains__(self, sequence: TokenSequence) -> bool:
        name = sequence.name
        return name in self._shard_of or name in self._waiting

    def add(self, sequence: TokenSequence, hidden: HiddenStates) -> bool:
        """Keep the states of a sequence; False if there is no room for them in the budget.

        Raises OSError when the disk is full; whole shards stay.
        """
        if sequence in self:
            return True
        kept = rounded(hidden)
        size = sum(tensor.nbytes for tensor in _tensors(kept))
        if self._num_bytes + size > self._budget:
            return False
        self._waiting[sequence.name] = kept
        self._num_bytes += size
        if sum(len(states.final) for states in self._waiting.values()) >= self._shard_tokens:
            self.flush()
        return True

    def flush(self) -> None:
        """Write what waits for a shard to be full. Raises OSError, and then it still waits."""
        if not self._waiting:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._next_path()
        tensors = {
            f"{name}.{part}": tensor.contiguous()
            for name, states in self._waiting.items()
            for part, tensor in zip(_PARTS, _tensors(states), strict=True)
        }
        with _plain_errors(path), whole_file(path) as partial:
            save_file(tensors, partial, metadata={"identity": self._identity})
        self._shard_of |= dict.fromkeys(self._waiting, path)
        self._waiting.clear()

    def find(self, sequence: TokenSequence) -> HiddenStates | None:
        """What was added, rounded."""
        name = sequence.name
        if name in self._waiting:
            return self._waiting[name]
        path = self._shard_of.get(name)
        if path is None:
            return None
        with safe_open(path, framework="pt") as file:
            return HiddenStates(*(file.get_tensor(f"{name}.{part}") for part in _PARTS))

    def forget_all_but(self, sequences: Iterable[TokenSequence]) -> None:
        """Remove the shards that hold nothing of these."""
        wanted = {sequence.name for sequence in sequences}
        used = {path for name, path in self._shard_of.items() if name in wanted}
        for path in set(self._shard_of.values()) - used:
            self._num_bytes -= path.stat().st_size
            path.unlink()
        self._shard_of = {name: path for name, path in self._shard_of.items() if path in used}

    def _take_over(self, path: Path) -> None:
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
    """Of the sequences in a shard; none if it cannot be read or belongs to something else."""
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("identity") != identity:
                return set()
            return {key.partition(".")[0] for key in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError):
        return set()


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    """A full disk is an OSError, whoever meets it."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error
