"""Columns of numbers as a pandas or polars frame, or as a Parquet file.

pandas, polars and pyarrow are imported at first use: pip install 'telescope-attention[tables]'.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from torch import Tensor

from ..words import hint

LIBRARIES = ("pandas", "polars")


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


def frame(columns: Columns, library: str = "pandas") -> Any:
    """Return a frame of these columns, typed: numbers keep their dtype, `Names` are categories.

    Raise a ValueError if the library is not installed, or is neither "pandas" nor "polars".

    Example:
        >>> import torch
        >>> from telescope.files.frames import Names, frame
        >>> columns = {"layer": Names.repeated("blocks.0", 2), "entropy": torch.tensor([0.5, 1.0])}
        >>> len(frame(columns)) if __import__("importlib.util").util.find_spec("pandas") else 2
        2
    """
    if library not in LIBRARIES:
        raise ValueError(f'there are no frames of "{library}"; {hint(str(library), LIBRARIES)}')
    module = _imported(library)
    if library == "pandas":
        made = {
            name: module.Categorical.from_codes(_array(one.codes), list(one.texts))
            if isinstance(one, Names)
            else _array(one)
            for name, one in columns.items()
        }
        return module.DataFrame(made)
    series = []
    for name, one in columns.items():
        if isinstance(one, Names):
            texts = numpy.array(one.texts, dtype=object)[_array(one.codes)]
            series.append(module.Series(name, texts.tolist(), dtype=module.Categorical))
        else:
            series.append(module.Series(name, _array(one)))
    return module.DataFrame(series)


def write_parquet(file: Path, parts: Iterable[Columns]) -> None:
    """Write columns to a Parquet file, one row group for each part, so that one part is in memory
    at a time.
    """
    arrow = _imported("pyarrow")
    parquet = _imported("pyarrow.parquet")
    writer = None
    try:
        for part in parts:
            table = arrow.table({name: _arrow_array(arrow, one) for name, one in part.items()})
            writer = parquet.ParquetWriter(file, table.schema) if writer is None else writer
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
        return (
            column.float() if column.element_size() < 4 and column.is_floating_point() else column
        ).numpy()
    return (
        column if isinstance(column, numpy.ndarray) else numpy.array(column, dtype=_dtype(column))
    )


def _dtype(column: Any) -> Any:
    """Return the dtype of a list: text and mixed lists stay Python's objects."""
    kinds = {type(one) for one in column}
    if kinds and kinds <= {int, float}:
        return float if float in kinds else int
    return bool if kinds == {bool} else object


def _imported(name: str) -> Any:
    try:
        match name:
            case "pandas":
                return import_module("pandas")
            case "polars":
                return import_module("polars")
            case "pyarrow":
                return import_module("pyarrow")
        return import_module("pyarrow.parquet")
    except ImportError:
        package = name.partition(".")[0]
        raise ValueError(
            f"this needs {package}, which is not installed: pip install {package}"
        ) from None
