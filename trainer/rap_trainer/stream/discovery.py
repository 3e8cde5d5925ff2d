"""Which files there are: scans a directory, tells finished files from half-written and broken ones.

Only the first rank does this. A scan gives records for the catalogue; it reads no rows, and the
time is an argument.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rap_trainer.batch import Positions
from rap_trainer.stream.catalogue import Kind, Record
from rap_trainer.stream.file_format import FileProblem, FileReason
from rap_trainer.stream.layout import END_MARKER, IGNORED_PREFIXES, IGNORED_SUFFIX

FINISHED = -1
"""Offset of a file whose rows are all consumed; the row of a file's Position is its place in the order."""
SETTLE_S = 5.0  # an unfinished file that has not grown for so long is given up


@dataclass(frozen=True)
class _Growing:
    signature: tuple[int, int]
    since_s: float


class Discovery:
    """Finds files below `path`, each once. `probe` raises FileProblem for a file that cannot be read.

    With `whole_on_probe` false (text has no end mark) a file counts as written once it stands still.
    """

    def __init__(
        self,
        path: Path,
        probe: Callable[[Path], None],
        *,
        follow: bool,
        start: Positions,
        whole_on_probe: bool = True,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._path, self._probe = path, probe
        self._follow = follow and not path.is_file()
        self._whole_on_probe, self._settle_s = whole_on_probe, settle_s
        self._start = start
        self._known = set(start)
        self._present = set(start)
        self._next_order = 1 + max((position.row for position in start.values()), default=-1)
        self._growing: dict[str, _Growing] = {}
        self._problems: list[str] = []
        self._num_found = len(start)

    @property
    def present(self) -> set[str]:
        """Names seen by the last scan; a finished file that is gone need not be remembered."""
        return self._present

    def resumed(self) -> list[Record]:
        """The unfinished files of the start positions, in their order."""
        records: list[Record] = []
        for name, position in sorted(self._start.items(), key=lambda item: item[1].row):
            if position.offset == FINISHED:
                continue
            try:
                stat = self._file(name).stat()
            except OSError as error:
                hint = "hint: bring it back, or remove the checkpoint to begin anew"
                message = (
                    f"{self._file(name)}: the checkpoint wants row {position.offset} on ({error.strerror}); {hint}"
                )
                return [*records, Record(kind=Kind.ERROR, message=message)]
            records.append(_file_record(name, stat, order=position.row, first_row=position.offset))
        return records

    def scan(self, now_s: float) -> list[Record]:
        """Files that are new since the last scan, sorted by name; then END or ERROR where it is due."""
        ended = not self._follow or (self._path / END_MARKER).exists()  # before listing: what precedes it is seen
        try:
            names = self._names()
        except OSError as error:
            hint = "hint: create it, or correct source.files.path"
            return [Record(kind=Kind.ERROR, message=f"{self._path}: {error.strerror or error}; {hint}")]
        self._present = set(names)
        self._growing = {name: seen for name, seen in self._growing.items() if name in self._present}
        new = [name for name in names if name not in self._known]
        records = [record for name in new if (record := self._examine(name, now_s)) is not None]
        if ended and not self._growing:
            records.append(self._end())
        return records

    def _end(self) -> Record:
        if self._num_found:
            return Record(kind=Kind.END)
        if self._problems:
            listed = "\n  ".join(self._problems[:10])
            return Record(kind=Kind.ERROR, message=f"{self._path}: not one file can be read:\n  {listed}")
        hint = "hint: check source.files.path, or set follow: true to wait for files"
        return Record(kind=Kind.ERROR, message=f"{self._path}: no files; {hint}")

    def _examine(self, name: str, now_s: float) -> Record | None:
        path = self._file(name)
        try:
            stat = path.stat()
            signature = (stat.st_size, stat.st_mtime_ns)
            settled = self._settled(name, signature, now_s)
            if not self._whole_on_probe and not settled:
                return None
            self._probe(path)
        except FileNotFoundError:
            return None  # listed and then removed: nobody has begun it
        except (FileProblem, PermissionError) as problem:
            growing = isinstance(problem, FileProblem) and problem.growing
            if growing and not settled:
                return None
            return self._quarantine(name, problem)
        self._growing.pop(name, None)
        self._known.add(name)
        self._num_found += 1
        self._next_order += 1
        return _file_record(name, stat, order=self._next_order - 1, first_row=0)

    def _settled(self, name: str, signature: tuple[int, int], now_s: float) -> bool:
        """Whether a file that may be half-written has stood still long enough; notes it otherwise."""
        if not self._follow:
            return True
        seen = self._growing.get(name)
        if seen is None or seen.signature != signature:
            self._growing[name] = seen = _Growing(signature, now_s)
        return now_s - seen.since_s >= self._settle_s

    def _quarantine(self, name: str, problem: Exception) -> Record:
        self._growing.pop(name, None)
        self._known.add(name)
        self._problems.append(str(problem))
        reason = problem.reason if isinstance(problem, FileProblem) else FileReason.PERMISSION
        return Record(kind=Kind.QUARANTINED, name=name, reason=str(reason), message=str(problem))

    def _names(self) -> list[str]:
        if self._path.is_file():
            return [self._path.name]
        os.stat(self._path / ".")  # noqa: PTH116  # os.walk would hide a missing or forbidden directory
        names: list[str] = []
        for directory, subdirectories, files in os.walk(self._path, onerror=_raise):
            subdirectories[:] = list(_visible(subdirectories))
            below = Path(directory).relative_to(self._path)
            names.extend((below / name).as_posix() for name in _visible(files))
        return sorted(names)

    def _file(self, name: str) -> Path:
        return (self._path.parent if self._path.is_file() else self._path) / name


def _visible(names: Iterable[str]) -> Iterable[str]:
    return (n for n in names if not n.startswith(IGNORED_PREFIXES) and not n.endswith(IGNORED_SUFFIX))


def _raise(error: OSError) -> None:
    raise error


def _file_record(name: str, stat: os.stat_result, *, order: int, first_row: int) -> Record:
    return Record(
        kind=Kind.FILE,
        name=name,
        order=order,
        first_row=first_row,
        size_bytes=stat.st_size,
        modified_s=stat.st_mtime,
    )
