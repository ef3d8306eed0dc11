"""Progress of long work: a bar on a terminal, lines anywhere else."""

import time
from types import TracebackType
from typing import Any, TextIO

from tqdm import tqdm

_BYTES = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}]"
_UNKNOWN = "{desc} [{elapsed}]"


class TerminalProgress:
    """The engine's Progress, shown on `stream`."""

    def __init__(self, *, stream: TextIO, log_tenths: bool = False) -> None:
        """log_tenths: without a terminal, print a line for each tenth of a piece of work.

        Otherwise print its duration at the end, which callers with log_tenths log themselves.
        """
        self._stream = stream
        self._log_tenths = log_tenths
        self._total: int | None = None
        self._tenths = 0
        self._bar: tqdm[Any] | None = None
        self._is_terminal = stream.isatty()
        self._label: str | None = None
        self._started = 0.0

    def __enter__(self) -> "TerminalProgress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._finish(is_done=error is None)

    def start(self, label: str, *, total: int | None) -> None:
        self._finish(is_done=True)
        self._label, self._started = label, time.monotonic()
        self._total, self._tenths = total, 0
        if self._is_terminal:
            self._bar = tqdm(
                desc=label,
                total=total,
                unit="B",
                unit_scale=True,
                file=self._stream,
                dynamic_ncols=True,
                bar_format=_UNKNOWN if total is None else _BYTES,
            )
        else:
            print(f"{label} ...", file=self._stream, flush=True)

    def update(self, done: int) -> None:
        if self._bar is not None:
            self._bar.n = done
            self._bar.refresh()
        elif self._log_tenths and self._total:
            self._tell(done, self._total)

    def _tell(self, done: int, total: int) -> None:
        tenths = 10 * done // total
        if self._tenths < tenths < 10:
            print(f"{self._label}: {done} of {total}", file=self._stream, flush=True)
        self._tenths = max(tenths, self._tenths)

    def _finish(self, *, is_done: bool) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif self._label is not None and is_done and not self._log_tenths:
            seconds = time.monotonic() - self._started
            print(f"{self._label}: done in {seconds:.1f} s", file=self._stream, flush=True)
        self._label = None
