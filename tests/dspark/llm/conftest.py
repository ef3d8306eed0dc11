"""One tiny random pair, loaded once for all tests of the Python API."""

from collections.abc import Iterator

import pytest

from dspark import LLM
from tests.support.server.tiny_pair import TinyPair


@pytest.fixture(scope="package")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    return TinyPair.write(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="package")
def llm(tiny_pair: TinyPair) -> Iterator[LLM]:
    with new_llm(tiny_pair) as loaded:
        yield loaded


def new_llm(pair: TinyPair, **settings: object) -> LLM:
    """Load the pair into a pool of a few hundred tokens."""
    return LLM(
        model=pair.target,
        draft=str(pair.draft),
        kv={"num_pages": 64, "page_size": 8},
        device={"num_threads": 1},
        **{"speculative.draft_budget": "always", **settings},
    )
