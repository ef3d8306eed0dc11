"""The temperatures of a draft's confidences, as a file beside the draft."""

import json
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path

from draft.errors import DraftLoadError
from draft.reading import read_json
from draft.training.whole_file import whole_file

FILE_NAME = "calibration.json"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was fitted, and on what. Errors are by position, on rounds that were held out."""

    temperatures: tuple[float, ...]  # one for each position of a block
    dataset: str
    num_samples: int  # rounds that the fit saw
    ece_before: tuple[float, ...]
    ece_after: tuple[float, ...]

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        return all(temperature == 1 for temperature in self.temperatures)

    def write(self, folder: Path) -> Path:
        """The file, whole or not at all. Raises OSError."""
        file = folder / FILE_NAME
        with whole_file(file) as partial:
            partial.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        return file


def read_calibration(folder: Path, *, block_size: int) -> Calibration | None:
    """What lies beside a draft; None when nothing does.

    Raises DraftLoadError for a file that is broken, or was made for another block size.
    """
    if not (folder / FILE_NAME).exists():
        return None
    values = read_json(folder / FILE_NAME)
    return Calibration(
        temperatures=_numbers(values, "temperatures", length=block_size, above_zero=True),
        dataset=str(values.get("dataset", "unknown")),
        num_samples=_count(values),
        ece_before=_numbers(values, "ece_before", length=block_size, above_zero=False),
        ece_after=_numbers(values, "ece_after", length=block_size, above_zero=False),
    )


def _numbers(
    values: dict[str, object], name: str, *, length: int, above_zero: bool
) -> tuple[float, ...]:
    found = values.get(name)
    numbers = [float(item) for item in found if _is_number(item)] if isinstance(found, list) else []
    is_whole = isinstance(found, list) and len(found) == len(numbers) == length
    if not is_whole or not all(isfinite(x) and (x > 0 if above_zero else x >= 0) for x in numbers):
        wanted = f"{length} numbers {'above 0' if above_zero else 'of 0 or more'}"
        raise DraftLoadError(
            f"{FILE_NAME} {name}", found=found, accepted=f"{wanted}, one for each position"
        )
    return tuple(numbers)


def _count(values: dict[str, object]) -> int:
    found = values.get("num_samples")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise DraftLoadError(f"{FILE_NAME} num_samples", found=found, accepted="an integer >= 1")
    return found


def _is_number(item: object) -> bool:
    return isinstance(item, int | float) and not isinstance(item, bool)
