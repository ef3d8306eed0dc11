"""Every decoder class of transformers is served exactly or refused: none is silently wrong."""

import pytest
import transformers

from tests.support.engine import decoder_classes
from tests.support.engine.decoder_classes import CLASSES, outcomes_of, recorded


def test_no_decoder_class_is_served_wrongly() -> None:
    wrong = {n: o for n, outcomes in recorded().items() for o in outcomes if o.kind == "wrong"}
    assert wrong == {}


def test_every_class_of_the_recorded_version_has_an_outcome() -> None:
    if transformers.__version__ == decoder_classes.recorded_version():
        assert sorted(recorded()) == sorted(CLASSES)
    assert all(recorded().values())


@pytest.mark.parametrize("name", ["lfm2", "bart", "dory", "minimax_m3_vl_text"])
def test_a_refusal_of_the_record_is_what_loading_reports(name: str) -> None:
    assert outcomes_of(name) == recorded()[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_class_still_has_its_recorded_outcome(name: str) -> None:
    if transformers.__version__ != decoder_classes.recorded_version():
        assert not any(outcome.kind == "wrong" for outcome in outcomes_of(name))
    else:
        assert outcomes_of(name) == recorded()[name]
