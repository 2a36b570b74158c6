"""Columns as a pandas or polars frame or a Parquet file, and texts read from Parquet files.

pandas, polars and pyarrow are imported at first use: pip install 'telescope-attention[tables]'.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from torch import Tensor

from ..words import hint, one_line
from .errors import import_optional

LIBRARIES = ("pandas", "polars")
ROWS = 256  # of a Parquet file that are decoded at once


class Names(NamedTuple):
    """A column of text in which few texts repeat: the number of the text in each row, and the
    texts.
    """

    codes: Any
    texts: tuple[str, ...]

    @classmethod
    def repeated(cls, text: str, count: int) -> "Names":
        """Return a column that has the same text in every row."""
        return cls(numpy.zeros(count, numpy.int32), (text,))

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Names":
        """Return a column of these texts."""
        known = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        return cls(numpy.array([known[text] for text in texts], numpy.int32), tuple(known))


Columns = Mapping[str, Any]
"""Columns of equal length by name: tensors of one axis, numpy arrays, lists or `Names`."""


# ---------------------------------------------------------------------------------- frames, Parquet


def frame(columns: Columns, library: str = "pandas") -> Any:
    """Return a frame of these columns, typed: numbers keep their dtype, `Names` are categories.

    Raise a ValueError if the library is not installed, or is neither "pandas" nor "polars".

    Example:
        >>> import torch
        >>> from telescope.files.tables import Names, frame
        >>> columns = {
        ...     "layer": Names.repeated("blocks.0", 2),
        ...     "entropy": torch.tensor([0.5, 1.0]),
        ... }
        >>> len(frame(columns)) if __import__("importlib.util").util.find_spec(
        ...     "pandas"
        ... ) else 2
        2
    """
    if library not in LIBRARIES:
        raise ValueError(f'there are no frames of "{library}"; {hint(str(library), LIBRARIES)}')
    module = import_optional(library, "this")

    def column(one: Any) -> Any:
        if not isinstance(one, Names):
            return _array(one)
        codes = _array(one.codes)
        if library == "pandas":
            return module.Categorical.from_codes(codes, list(one.texts))
        # polars has no constructor of categories from codes.
        texts = numpy.array(one.texts, dtype=object)[codes].tolist()
        return module.Series(texts, dtype=module.Categorical)

    return module.DataFrame({name: column(one) for name, one in columns.items()})


def write_parquet(file: Path, parts: Iterable[Columns]) -> None:
    """Write columns to a Parquet file, one row group for each part, so that one part is in memory
    at a time.
    """
    arrow = import_optional("pyarrow", "this")
    parquet = import_optional("pyarrow.parquet", "this")
    writer = None
    try:
        for part in parts:
            table = arrow.table({name: _arrow_array(arrow, one) for name, one in part.items()})
            # The first part tells the types of the columns.
            writer = writer or parquet.ParquetWriter(file, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _arrow_array(arrow: Any, column: Any) -> Any:
    if isinstance(column, Names):
        codes = arrow.array(_array(column.codes).astype(numpy.int32))
        return arrow.DictionaryArray.from_arrays(codes, list(column.texts)).cast(arrow.string())
    array = _array(column)
    return arrow.array(array.tolist() if array.dtype == object else array)


def _array(column: Any) -> Any:
    """Return a numpy array; bfloat16, which numpy does not have, as float32."""
    if isinstance(column, Tensor):
        column = column.detach().cpu()
        is_half = column.element_size() < 4 and column.is_floating_point()
        return (column.float() if is_half else column).numpy()
    if isinstance(column, numpy.ndarray):
        return column
    # Text and mixed lists stay Python's objects: numpy would turn them all into text.
    kinds = {type(one) for one in column}
    is_number = bool(kinds) and (kinds <= {int, float} or kinds == {bool})
    return numpy.array(column, dtype=None if is_number else object)


# --------------------------------------------------------------------- reading texts, maybe hostile


def column_names(file: Path) -> list[str]:
    """Return the names of the columns of a Parquet file.

    Raises a ValueError whose sentence continues the name of the file, as all errors below do: "is
    not a Parquet file that can be read: ...".
    """
    return [field.name for field in _open(file).schema_arrow]


def read_texts(file: Path, columns: Sequence[str]) -> Iterator[tuple[str | None, ...]]:
    """Yield the texts of these columns, a tuple for each row, with None for an empty cell.

    Raise a ValueError where the file is damaged, has no such column, or a column holds something
    else than texts. Rows before the damage are yielded first.
    """
    opened = _open(file)
    kinds = {field.name: field.type for field in opened.schema_arrow}
    for column in columns:
        if column not in kinds:
            raise ValueError(one_line(f'has no column "{column}"; {hint(column, kinds)}'))
        if not _is_text(kinds[column]):
            kind = kinds[column]
            problem = f'holds something else than texts in the column "{column}": {kind}'
            raise ValueError(one_line(problem))

    batches = opened.iter_batches(batch_size=ROWS, columns=list(columns))
    row = 0
    while True:
        # pyarrow has an error for each way of being damaged, raised by the decoding of a batch.
        try:
            batch = next(batches, None)
            if batch is None:
                return
            cells = [batch.column(name).to_pylist() for name in columns]
        except Exception as problem:
            reason = _reason(problem)
            raise ValueError(f"cannot be read from row {row + 1:,} on: {reason}") from None
        yield from zip(*cells, strict=True)
        row += batch.num_rows


def _open(file: Path) -> Any:
    """Return pyarrow's reader of a file, whose footer was read; its pages are compared with their
    checksums.
    """
    parquet = import_optional("pyarrow.parquet", "a .parquet file", "atlas")
    try:
        opened = parquet.ParquetFile(file, page_checksum_verification=True)
        _ = opened.schema_arrow  # a damaged schema is found only when it is asked for
    except Exception as problem:
        raise ValueError(f"is not a Parquet file that can be read: {_reason(problem)}") from None
    return opened


def _is_text(kind: Any) -> bool:
    """Return whether a column of this type holds texts, or nothing at all."""
    types = import_optional("pyarrow", "a .parquet file", "atlas").types
    if types.is_dictionary(kind):
        kind = kind.value_type
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    return any(test(kind) for test in tests)


def _reason(problem: Exception) -> str:
    """Return the first line of pyarrow's message; it may hold any byte of the file."""
    return one_line((str(problem).strip() or type(problem).__name__).partition("\n")[0])
