"""Reads and writes calibration.json: a draft's confidence calibration, in its folder."""

import json
from dataclasses import asdict, dataclass
from math import inf, isfinite
from pathlib import Path

from draft.atomic_write import whole_file
from draft.calibration import Scaling
from draft.checkpoint.reading import read_json
from draft.errors import DraftLoadError

FILE_NAME = "calibration.json"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Holds a fitted scaling, its data set, and its errors by position on held-out rounds.

    The format is the usual one of sequential temperature scaling, plus the optional `shifts`.
    """

    temperatures: tuple[float, ...]  # one for each position of a block
    dataset: str
    num_samples: int  # rounds used by the fit
    ece_before: tuple[float, ...]
    ece_after: tuple[float, ...]
    shifts: tuple[float, ...]  # one for each position, added after the division

    @property
    def scaling(self) -> Scaling:
        return Scaling(self.temperatures, self.shifts)

    @property
    def is_identity(self) -> bool:
        """Whether the scaling leaves every confidence unchanged."""
        return self.scaling == Scaling.identity(len(self.temperatures))

    def write(self, folder: Path) -> Path:
        """Write the file atomically and return its path. Raises OSError."""
        file = folder / FILE_NAME
        with whole_file(file) as partial:
            partial.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        return file


def read_calibration(folder: Path, *, block_size: int) -> Calibration | None:
    """Read a draft's calibration; None if its folder has no file.

    Raises DraftLoadError for a file that is broken or was fitted for another block size.
    """
    if not (folder / FILE_NAME).exists():
        return None
    values = read_json(folder / FILE_NAME)
    return Calibration(
        temperatures=_numbers(values, "temperatures", length=block_size, above=0.0),
        dataset=str(values.get("dataset", "unknown")),
        num_samples=_count(values),
        ece_before=_numbers(values, "ece_before", length=block_size, at_least=0.0),
        ece_after=_numbers(values, "ece_after", length=block_size, at_least=0.0),
        shifts=_numbers(values, "shifts", length=block_size)
        if "shifts" in values
        else (0.0,) * block_size,
    )


def _numbers(
    values: dict[str, object],
    name: str,
    *,
    length: int,
    above: float = -inf,
    at_least: float = -inf,
) -> tuple[float, ...]:
    found = values.get(name)
    numbers = [float(item) for item in found if _is_number(item)] if isinstance(found, list) else []
    is_whole = isinstance(found, list) and len(found) == len(numbers) == length
    if not is_whole or not all(isfinite(x) and x > above and x >= at_least for x in numbers):
        bound = f" above {above:g}" if above > -inf else ""
        bound = f" of {at_least:g} or more" if at_least > -inf else bound
        raise DraftLoadError(
            f"{FILE_NAME} {name}",
            found=found,
            accepted=f"{length} numbers{bound}, one for each position",
        )
    return tuple(numbers)


def _count(values: dict[str, object]) -> int:
    found = values.get("num_samples")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise DraftLoadError(f"{FILE_NAME} num_samples", found=found, accepted="an integer >= 1")
    return found


def _is_number(item: object) -> bool:
    return isinstance(item, int | float) and not isinstance(item, bool)
