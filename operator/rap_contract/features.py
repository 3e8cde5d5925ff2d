"""Features of a job: which columns, which chain of ops, which table."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rap_contract.model import Model
from rap_contract.ops import OpSpec

Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z_{][A-Za-z0-9_.{}-]*$")]
Rows = Annotated[int, Field(ge=1, le=2**40)]
Dim = Annotated[int, Field(ge=4, le=4096, multiple_of=4)]


class Table(Model):
    """An embedding table, or one per column of the group."""

    rows: Rows | Annotated[list[Rows], Field(min_length=1, max_length=10_000)]
    """Number of rows: one number, or one per column of the group."""
    dim: Dim
    """Width of an embedding; a multiple of 4."""
    name: str | None = Field(default=None, min_length=1, max_length=253)
    """Name of the table; features that give the same name share it. Default: the feature's name."""
    pooling: Literal["sum", "mean"] = "sum"
    """How the embeddings of a list become one."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type in which the table is stored."""
    sharding: Literal["tableWise", "columnWise", "dataParallel"] = "tableWise"
    """Whole on one rank, its columns in up to four parts on several, or a copy on every rank, for small tables, trained by the dense optimizer."""
    out_of_range: Literal["refuse", "zero"] = "refuse"
    """An id the chain does not prove to be in range: refuse the job, or let such ids read row 0."""

    @model_validator(mode="after")
    def _copies_are_float32(self) -> Self:
        if self.sharding == "dataParallel" and self.dtype != "float32":
            raise ValueError("a dataParallel table is float32, for the dense optimizer trains it")
        return self


class Feature(Model):
    """A group of features: one chain of ops applied to each of its columns."""

    columns: Annotated[list[Name], Field(min_length=1, max_length=10_000)]
    """Input columns, patterns such as `cat_{0..25}` allowed; one feature each."""
    name: Name | None = None
    """Name of the feature; in a group of several columns it must hold `{column}`. Default: the column's name."""
    ops: Annotated[list[OpSpec], Field(max_length=64)] = []
    """The chain, first op first."""
    weights: Name | None = None
    """Column of weights that go with the ids of the lists; it may hold `{column}`."""
    nulls: Literal["propagate", "skip"] = "propagate"
    """A null element makes its row null, or counts as absent."""
    table: Table | None = None
    """The embedding table of a sparse feature; without one the feature is dense."""
