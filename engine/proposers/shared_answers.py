"""Keeps recent answers of a server, so that lookups find repetitions of other requests' text."""

from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from engine.proposers.suffix_index import INDEX_BYTES, SuffixIndex
from engine.scheduler.sequence import SequenceState

_Group = tuple[str, str]  # owner and salt; no text crosses between groups
_END = -1  # follows an answer in an index; no token
_WALKED = 64  # last tokens of a text that are compared with other answers
_BYTES = INDEX_BYTES + 4  # of a token: in the index, and in the answer
_GROUP_TOKENS = 8  # whose bytes a group takes in addition to those of its answers


@dataclass(slots=True)
class _Answers:
    """The answers of one group, newest last."""

    index: SuffixIndex = field(default_factory=SuffixIndex)
    indexed: deque["array[int]"] = field(default_factory=deque)
    num_tokens: int = _GROUP_TOKENS  # that count against the bound


@dataclass(slots=True)
class SharedMatch:
    """The longest suffix of a text that occurs in an answer of its group."""

    index: SuffixIndex
    stop: int  # position after the last compared token
    state: int = 0
    length: int = 0

    def continuation(self, count: int) -> list[int]:
        """Return at most `count` tokens that followed the match; none after the answer's end."""
        found = self.index.after(self.state, count)
        return found[: found.index(_END)] if _END in found else found


class SharedAnswers:
    """Indexes finished answers by owner and salt, within a bound of bytes.

    Answers are indexed some tokens per step. A group that reaches half the bound begins again with
    its newest answers; beyond the bound, the group that was used least recently is dropped.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._most_tokens = max_bytes // _BYTES
        self._groups: OrderedDict[_Group, _Answers] = OrderedDict()
        self._waiting: deque[tuple[_Group, array[int]]] = deque()
        self._num_waiting = 0  # tokens
        self.num_tokens = 0  # that count against the bound

    def add(self, seq: SequenceState) -> None:
        """Take the answer of a sequence that has ended."""
        answer = array("i", seq.token_ids[seq.num_prompt :])
        if 0 < len(answer) <= self._most_tokens // 4 - self._num_waiting:
            self._waiting.append((_group_of(seq), answer))
            self._num_waiting += len(answer)

    def index(self, num_tokens: int) -> None:
        """Index waiting answers of about so many tokens."""
        while self._waiting and num_tokens > 0:
            name, answer = self._waiting.popleft()
            self._num_waiting -= len(answer)
            num_tokens -= len(answer)
            group = self._groups.get(name)
            if group is None or group.num_tokens + len(answer) >= self._most_tokens // 2:
                group = self._begin(name)
            self._groups.move_to_end(name)
            group.index.extend([*answer, _END])
            group.indexed.append(answer)
            group.num_tokens += len(answer) + 1
            self.num_tokens += len(answer) + 1
            while self.num_tokens > self._most_tokens:
                _, dropped = self._groups.popitem(last=False)
                self.num_tokens -= dropped.num_tokens

    def match(self, seq: SequenceState, known: SharedMatch | None) -> SharedMatch | None:
        """Return the text's match; known: that of its earlier tokens, which is changed."""
        group = self._groups.get(_group_of(seq))
        if group is None:
            return None
        length = len(seq.token_ids)
        if known is None or known.index is not group.index or known.stop > length:
            known = SharedMatch(group.index, max(0, length - _WALKED))
        known.state, known.length = group.index.advance(
            known.state, known.length, seq.token_ids[known.stop :]
        )
        known.stop = length
        return known

    def clear(self) -> None:
        self._groups.clear()
        self._waiting.clear()
        self.num_tokens = self._num_waiting = 0

    def _begin(self, name: _Group) -> _Answers:
        """Begin a group, or again: then its newest answers, a quarter of the bound, wait first."""
        old = self._groups.get(name)
        if old is not None:
            self.num_tokens -= old.num_tokens
            left = self._most_tokens // 4
            while old.indexed and len(old.indexed[-1]) <= left:
                answer = old.indexed.pop()
                left -= len(answer)
                self._waiting.appendleft((name, answer))
                self._num_waiting += len(answer)
        new = self._groups[name] = _Answers()
        self.num_tokens += new.num_tokens
        return new


def _group_of(seq: SequenceState) -> _Group:
    return seq.request.owner, seq.request.cache_salt
