"""Random operations on sequences: each reads what it wrote, and no page is leaked.

The key and value of a token encode all tokens up to it: a number assigned to each prefix when it
first appears. A page that is shared, written or allocated wrongly shows as a wrong number.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from torch import Tensor

from kv_pool import KVLayout, KVPool, KVShape, OutOfPages, PageManager, PageTable

NUM_PAGES = 14
MAX_SEQUENCES = 4
NUM_SCRATCH = 3  # slots reserved after the last token, overwritten with NaN at every write
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=5)
PROMPTS = st.builds(  # few distinct beginnings: prefixes are often shared
    lambda story, length: story[:length],
    st.sampled_from([[0] * 14, [0, 0, 1, 1] * 3 + [0, 0], [1] * 14]),
    st.integers(3, 14),
)


@dataclass(eq=False)
class Sequence:
    table: PageTable
    token_ids: list[int] = field(default_factory=list)  # all of them are in the pool
    num_published: int = 0  # leading full pages that other sequences may read


class RandomLives(RuleBasedStateMachine):
    sequences = Bundle("sequences")

    @initialize(
        page_size=st.sampled_from([2, 4, 1]),
        prefix_cache=st.sampled_from([True, True, True, False]),
    )
    def make_pool(self, page_size: int, prefix_cache: bool) -> None:
        self.numbers: dict[tuple[int, ...], float] = {}
        self.alive: list[Sequence] = []
        self.pages = PageManager(
            num_pages=NUM_PAGES, page_size=page_size, prefix_cache=prefix_cache
        )
        shape = KVShape(1, 1, 1, torch.float32)
        self.kv = KVPool(
            KVLayout(page_size, torch.device("cpu"), target=(shape,), draft=(shape, shape)),
            num_pages=NUM_PAGES,
        )

    @precondition(lambda self: len(self.alive) < MAX_SEQUENCES)
    @rule(target=sequences, prompt_ids=PROMPTS)
    def start(self, prompt_ids: list[int]) -> object:
        """Start a sequence; the cached part of its prompt is not written again."""
        found = self.pages.match_prefix(prompt_ids, max_tokens=len(prompt_ids) - 1)
        num_cached = len(found) * self.pages.page_size
        assert num_cached < len(prompt_ids)
        seq = Sequence(PageTable(self.pages.page_size, found), prompt_ids[:num_cached], len(found))
        self.assert_reads_what_was_written(seq)
        self.alive.append(seq)
        if self.write(seq, prompt_ids[num_cached:]):
            return seq
        self.end(seq)
        return multiple()

    @rule(seq=sequences, token_ids=TOKENS)
    def extend(self, seq: Sequence, token_ids: list[int]) -> None:
        self.write(seq, token_ids)

    @rule(seq=sequences, num_tokens=st.integers(1, 6), token_ids=TOKENS)
    def rewind(self, seq: Sequence, num_tokens: int, token_ids: list[int]) -> None:
        """Replace the last tokens that are not yet published."""
        fixed = seq.num_published * self.pages.page_size
        length = max(fixed, len(seq.token_ids) - num_tokens)
        del seq.token_ids[length:]
        self.pages.release(seq.table.trim(length))
        self.write(seq, token_ids)

    @rule(seq=sequences)
    def publish_pages(self, seq: Sequence) -> None:
        self.publish(seq)

    @rule(seq=consumes(sequences))
    def finish(self, seq: Sequence) -> None:
        self.publish(seq)
        self.end(seq)

    @rule()
    def flush(self) -> None:
        cached = self.pages.num_cached
        assert self.pages.flush() == cached
        assert self.pages.num_cached == 0

    @invariant()
    def every_sequence_reads_what_it_wrote(self) -> None:
        for seq in self.alive:
            self.assert_reads_what_was_written(seq)

    @invariant()
    def exactly_the_pages_in_tables_are_used(self) -> None:
        held = {page for seq in self.alive for page in seq.table.pages}
        assert self.pages.num_used == len(held)
        assert self.pages.num_available == NUM_PAGES - len(held)

    def teardown(self) -> None:
        for seq in list(self.alive):
            self.end(seq)
        self.pages.flush()
        assert sorted(self.pages.allocate(NUM_PAGES)) == list(range(NUM_PAGES))

    def write(self, seq: Sequence, token_ids: list[int]) -> bool:
        """Append tokens; overwrite the reserved slots after them, as rejected drafts do."""
        start, stop = len(seq.token_ids), len(seq.token_ids) + len(token_ids)
        added = self.allocate(seq.table.missing_pages(stop + NUM_SCRATCH))
        if added is None:
            return False
        seq.table.extend(added)
        seq.token_ids.extend(token_ids)
        self.store(seq.table.slots(start, stop), self.expected(seq)[start:])
        scratch = seq.table.slots(stop, stop + NUM_SCRATCH)
        self.store(scratch, torch.full((NUM_SCRATCH,), float("nan")))
        return True

    def allocate(self, count: int) -> list[int] | None:
        """Allocate pages; None, without any change, exactly when too few are available."""
        before = self.pages.num_available, self.pages.num_used, self.pages.num_cached
        try:
            pages = self.pages.allocate(count)
        except OutOfPages:
            assert count > before[0]
            assert before == (
                self.pages.num_available,
                self.pages.num_used,
                self.pages.num_cached,
            )
            return None
        assert len(set(pages)) == count
        assert not set(pages) & {page for seq in self.alive for page in seq.table.pages}
        return pages

    def publish(self, seq: Sequence) -> None:
        num_full = len(seq.token_ids) // self.pages.page_size
        self.pages.publish(seq.token_ids, seq.table.pages[:num_full])
        seq.num_published = num_full

    def end(self, seq: Sequence) -> None:
        self.alive.remove(seq)
        self.pages.release(seq.table.pages)

    def expected(self, seq: Sequence) -> Tensor:
        ids = tuple(seq.token_ids)
        prefixes = [ids[: i + 1] for i in range(len(ids))]
        numbers = [self.numbers.setdefault(p, float(len(self.numbers))) for p in prefixes]
        return torch.tensor(numbers, dtype=torch.float32)

    def store(self, slots: np.ndarray, numbers: Tensor) -> None:
        """Write different numbers to every storage, so that a mix-up shows."""
        where, kv = torch.from_numpy(slots), numbers.view(-1, 1, 1)
        self.kv.write_target(0, where, kv, kv + 1000)
        self.kv.write_draft(where, torch.stack([kv + 2000, kv + 3000]), torch.stack([kv, -kv]))

    def assert_reads_what_was_written(self, seq: Sequence) -> None:
        slots = torch.from_numpy(seq.table.slots(0, len(seq.token_ids)))
        numbers = self.expected(seq)
        assert torch.equal(self.kv.target_keys(0)[slots].flatten(), numbers)
        assert torch.equal(self.kv.target_values(0)[slots].flatten(), numbers + 1000)
        assert torch.equal(self.kv.draft_keys[0, slots].flatten(), numbers + 2000)
        assert torch.equal(self.kv.draft_keys[1, slots].flatten(), numbers + 3000)
        assert torch.equal(self.kv.draft_values[0, slots].flatten(), numbers)
        assert torch.equal(self.kv.draft_values[1, slots].flatten(), -numbers)


TestRandomLives = RandomLives.TestCase
TestRandomLives.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
