"""Messages that are Arrow IPC streams or files, compressed or not, with dictionaries or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from rap_trainer.stream.dead_letters import BadRow
from rap_trainer.stream.kafka.messages import Parsed, bad_message, registry_detail, registry_framed

_FILE_MAGIC = b"ARROW1"


class ArrowMessages:
    """Implements Parser; only `wanted` columns are kept, those that are missing are not its business."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted = frozenset(wanted)

    def parse(self, values: Sequence[bytes | None]) -> Iterator[Parsed]:
        """A piece for each run of equal schemas; an empty message or a bad one ends no run."""
        read = [self._read(value) for value in values]
        schemas = [each.schema if isinstance(each, pa.Table) else None for each in read]
        known = next((schema for schema in schemas if schema is not None), None)
        for index, schema in enumerate(schemas):
            schemas[index] = known = known if schema is None else schema
        runs = groupby(zip(schemas, read, strict=True), key=_Key)
        for _, run in runs:
            yield _joined([each for _, each in run])

    def _read(self, value: bytes | None) -> pa.Table | BadRow | None:
        if not value:
            return None
        if registry_framed(value):
            return bad_message(value, registry_detail(value))
        try:
            source = pa.py_buffer(value)
            is_file = value[: len(_FILE_MAGIC)] == _FILE_MAGIC
            reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
            table = reader.read_all()
            table = table.select([i for i, name in enumerate(table.column_names) if name in self._wanted])
            table.validate(full=True)  # offsets and dictionary indices may point anywhere
        except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError, ValueError) as error:
            return bad_message(value, f"not a whole Arrow IPC stream or file ({_first_line(error)})")
        return table.replace_schema_metadata(None)


class _Key:
    """Compares schemas of a run; no schema at all equals itself."""

    def __init__(self, item: tuple[pa.Schema | None, object]) -> None:
        self._schema = item[0]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, _Key)
        mine, others = self._schema, other._schema
        return mine is others or (mine is not None and others is not None and bool(mine.equals(others)))

    __hash__ = None  # type: ignore[assignment]


def _joined(read: Sequence[pa.Table | BadRow | None]) -> Parsed:
    tables = [each for each in read if isinstance(each, pa.Table) and each.num_rows]
    num_rows = [each.num_rows if isinstance(each, pa.Table) else int(each is not None) for each in read]
    starts = np.cumsum([0, *num_rows])[:-1].tolist()
    bad = tuple(
        bad_message(each.payload, each.detail, row=start)
        for each, start in zip(read, starts, strict=True)
        if isinstance(each, BadRow)
    )
    numbers = np.delete(np.arange(sum(num_rows)), [row.row for row in bad]) if bad else None
    return Parsed(num_rows=tuple(num_rows), batch=_one_batch(tables), row_numbers=numbers, bad=bad)


def _one_batch(tables: Sequence[pa.Table]) -> pa.RecordBatch | None:
    if not tables:
        return None
    table = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
    batches = table.to_batches()
    if len(batches) == 1:
        return batches[0]
    return table.unify_dictionaries().combine_chunks().to_batches()[0]


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
