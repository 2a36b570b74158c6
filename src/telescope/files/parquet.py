"""Read texts from Parquet files. pyarrow has an error for each way of being damaged; here all are
one ValueError.

The sentence of the error continues the name of the file: "is not a Parquet file that can be read:
...".
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..words import hint, one_line
from .optional import import_optional

ROWS = 256  # that are decoded at once


def column_names(file: Path) -> list[str]:
    """Return the names of the columns; raise a ValueError where the file cannot be read."""
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
            raise ValueError(
                one_line(
                    f'holds something else than texts in the column "{column}": {kinds[column]}'
                )
            )

    batches = opened.iter_batches(batch_size=ROWS, columns=list(columns))
    row = 0
    while True:
        try:
            batch = next(batches, None)
            rows = (
                []
                if batch is None
                else [*zip(*(batch.column(name).to_pylist() for name in columns), strict=True)]
            )
        except Exception as problem:
            raise ValueError(
                f"cannot be read from row {row + 1:,} on: {_reason(problem)}"
            ) from None
        if batch is None:
            return
        yield from rows
        row += len(rows)


def _open(file: Path) -> Any:
    """Return pyarrow's reader of a file, whose footer was read; its pages are compared with their
    checksums.
    """
    parquet = import_optional("pyarrow.parquet", "a .parquet file", "atlas")
    try:
        opened = parquet.ParquetFile(file, page_checksum_verification=True)
        _ = opened.schema_arrow
    except Exception as problem:
        raise ValueError(f"is not a Parquet file that can be read: {_reason(problem)}") from None
    return opened


def _is_text(kind: Any) -> bool:
    """Return whether a column of this type holds texts, or nothing at all."""
    types = import_optional("pyarrow", "a .parquet file", "atlas").types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return any(
        test(kind)
        for test in (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    )


def _reason(problem: Exception) -> str:
    """Return the first line of pyarrow's message; it may hold any byte of the file."""
    return one_line((str(problem).strip() or type(problem).__name__).partition("\n")[0])
