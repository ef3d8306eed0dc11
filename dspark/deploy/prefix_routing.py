"""Chooses a replica for a request by the text that each replica has seen."""

import random
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

_BLOCK = 64  # characters, about a page of tokens
_LONGEST = 1024  # blocks of one text
_ENTRIES = 200_000  # blocks that are remembered


def block_keys(text: str) -> tuple[int, ...]:
    """Return a key for each leading run of full blocks of the text, shortest first.

    Texts share a key exactly as far as they are equal, up to collisions of 64 bits.
    """
    keys: list[int] = []
    key = 0
    for start in range(0, min(len(text) - _BLOCK + 1, _LONGEST * _BLOCK), _BLOCK):
        key = hash((key, text[start : start + _BLOCK]))
        keys.append(key)
    return tuple(keys)


class PrefixIndex:
    """Remembers which replicas have seen a text; forgets the texts used longest ago."""

    def __init__(self, *, max_entries: int = _ENTRIES) -> None:
        self._max_entries = max_entries
        self._seen: OrderedDict[int, frozenset[str]] = OrderedDict()  # key -> replicas
        self._alone: dict[str, frozenset[str]] = {}  # replica -> the set of it, one for all keys

    def __len__(self) -> int:
        return len(self._seen)

    def insert(self, keys: Sequence[int], replica: str, replicas: Collection[str]) -> None:
        """Note that a replica has seen the text with these keys; forget all but `replicas`."""
        alone = self._alone.setdefault(replica, frozenset({replica}))
        for key in reversed(keys):  # a text loses its end first
            before = self._seen.get(key, frozenset())
            if replica not in before:
                self._seen[key] = alone.union(before.intersection(replicas)) if before else alone
            self._seen.move_to_end(key)
        while len(self._seen) > self._max_entries:
            self._seen.popitem(last=False)

    def match(self, keys: Sequence[int], replicas: Collection[str]) -> Collection[str]:
        """Return those of the replicas that have seen the longest beginning, if any has."""
        best: frozenset[str] = frozenset()
        for key in keys:
            seen = self._seen.get(key, frozenset()).intersection(best or replicas)
            if not seen:
                break
            best = seen
        return best


def choose(
    index: PrefixIndex, keys: Sequence[int], loads: Mapping[str, int], *, balance_threshold: int
) -> str:
    """Return the replica for a text. loads: unfinished requests of each replica, at least one.

    That is the least busy of those that have seen most of it. If it has more than
    balance_threshold requests more than the least busy one of all, or none has seen the text, it
    is the less busy one of two random replicas.
    """
    matched = index.match(keys, loads)
    if matched:
        best = min(sorted(matched), key=loads.__getitem__)
        if loads[best] - min(loads.values()) <= balance_threshold:
            return best
    return power_of_two(loads)


def power_of_two(loads: Mapping[str, int]) -> str:
    """Return the less busy one of two random replicas."""
    pair = random.sample(list(loads), min(2, len(loads)))
    return min(pair, key=loads.__getitem__)
