"""Messages that are Arrow IPC streams or files, compressed or not, with dictionaries or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from rap_trainer.stream.dead_letters import BadRow
from rap_trainer.stream.kafka.messages import Parsed, bad_message, registry_detail, registry_framed

_FILE_MAGIC = b"ARROW1"
_FEW_EXTRAS = 4  # columns nobody wants: cheaper to carry along through a frame than to leave out of each message


@dataclass(frozen=True)
class _Read:
    """A message's record batches, all of one schema."""

    batches: Sequence[pa.RecordBatch]
    schema: pa.Schema

    @property
    def num_rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


class ArrowMessages:
    """Implements Parser; only `wanted` columns are kept, those that are missing are not its business."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted = frozenset(wanted)
        self._schema: pa.Schema | None = None
        self._early: list[int] | None = None

    def parse(self, values: Sequence[bytes | None]) -> Iterator[Parsed]:
        """A piece for each run of equal schemas; an empty message or a bad one ends no run."""
        read = [self._read(value) for value in values]
        schemas = [each.schema if isinstance(each, _Read) else None for each in read]
        known = next((schema for schema in schemas if schema is not None), None)
        for index, schema in enumerate(schemas):
            schemas[index] = known = known if schema is None else schema
        runs = groupby(zip(schemas, read, strict=True), key=_Key)
        for _, run in runs:
            yield self._joined([each for _, each in run])

    def _read(self, value: bytes | None) -> _Read | BadRow | None:
        if not value:
            return None
        if registry_framed(value):
            return bad_message(value, registry_detail(value))
        try:
            source = pa.py_buffer(value)
            if value[: len(_FILE_MAGIC)] == _FILE_MAGIC:
                file = pa.ipc.open_file(source)
                batches, schema = [file.get_batch(i) for i in range(file.num_record_batches)], file.schema
            else:
                stream = pa.ipc.open_stream(source)
                batches, schema = list(stream), stream.schema
            early = self._chosen_early(schema)
            if early is not None:
                batches = [batch.select(early) for batch in batches]
                schema = batches[0].schema if batches else schema
            for batch in batches:
                batch.validate(full=True)  # offsets and dictionary indices may point anywhere
        except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError, ValueError) as error:
            return bad_message(value, f"not a whole Arrow IPC stream or file ({_first_line(error)})")
        return _Read(batches, schema)

    def _chosen_early(self, schema: pa.Schema) -> list[int] | None:
        """Places of the wanted columns, where the others are many or no plain numbers."""
        if self._schema is None or not schema.equals(self._schema):
            wanted = [index for index, name in enumerate(schema.names) if name in self._wanted]
            extras = [field.type for field in schema if field.name not in self._wanted]
            plain = all(pa.types.is_primitive(kind) for kind in extras)
            self._schema, self._early = schema, None if plain and len(extras) <= _FEW_EXTRAS else wanted
        return self._early

    def _joined(self, read: Sequence[_Read | BadRow | None]) -> Parsed:
        num_rows = [each.num_rows if isinstance(each, _Read) else int(each is not None) for each in read]
        starts = np.cumsum([0, *num_rows])[:-1].tolist()
        bad = tuple(
            bad_message(each.payload, each.detail, row=start)
            for each, start in zip(read, starts, strict=True)
            if isinstance(each, BadRow)
        )
        numbers = np.delete(np.arange(sum(num_rows)), [row.row for row in bad]) if bad else None
        batches = [b for each in read if isinstance(each, _Read) for b in each.batches if b.num_rows]
        return Parsed(num_rows=tuple(num_rows), batch=self._one_batch(batches), row_numbers=numbers, bad=bad)

    def _one_batch(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
        if not batches:
            return None
        batch = batches[0] if len(batches) == 1 else _concatenated(batches)
        places = [index for index, name in enumerate(batch.schema.names) if name in self._wanted]
        if len(places) < batch.num_columns:
            batch = batch.select(places)
        return batch if batch.schema.metadata is None else batch.replace_schema_metadata(None)


class _Key:
    """Compares schemas of a run; no schema at all equals itself."""

    def __init__(self, item: tuple[pa.Schema | None, object]) -> None:
        self._schema = item[0]

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, _Key)
        mine, others = self._schema, other._schema
        return mine is others or (mine is not None and others is not None and bool(mine.equals(others)))

    __hash__ = None  # type: ignore[assignment]


def _concatenated(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if any(pa.types.is_dictionary(field.type) or pa.types.is_nested(field.type) for field in batches[0].schema):
        table = pa.Table.from_batches(batches)  # dictionaries differ from message to message
        return table.unify_dictionaries().combine_chunks().to_batches()[0]
    return pa.concat_batches(batches)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
