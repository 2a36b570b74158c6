"""Safe reading and writing of files: checked paths, safetensors, atomic replacement, locks, tables,
definitions as JSON, errors.

May import attention and words. Read paths.py first for reading, atomic.py for writing.
"""

from . import paths, safetensors, tables
from .atomic import (
    WRITTEN_BY,
    atomic_file,
    atomic_folder,
    check_can_write,
    recover,
    resolve_path,
    sync_file,
    write_json,
)
from .definitions import check_savable, from_json, to_json
from .errors import LoadError, PanicError, WriteError, import_optional, panics_as_errors
from .locks import LOCK, is_locked, lock_file, locked_folder
from .paths import read_json
from .safetensors import (
    BYTES,
    DTYPES,
    WEIGHTS_FILE,
    StoredTensors,
    TensorsInMemory,
    read_header,
    save_tensors,
    scan_file,
    scan_folder,
)
from .tables import Columns, Names, frame, read_texts, write_parquet

__all__ = [
    "BYTES",
    "DTYPES",
    "LOCK",
    "WEIGHTS_FILE",
    "WRITTEN_BY",
    "Columns",
    "LoadError",
    "Names",
    "PanicError",
    "StoredTensors",
    "TensorsInMemory",
    "WriteError",
    "atomic_file",
    "atomic_folder",
    "check_can_write",
    "check_savable",
    "frame",
    "from_json",
    "import_optional",
    "is_locked",
    "lock_file",
    "locked_folder",
    "panics_as_errors",
    "paths",
    "read_header",
    "read_json",
    "read_texts",
    "recover",
    "resolve_path",
    "safetensors",
    "save_tensors",
    "scan_file",
    "scan_folder",
    "sync_file",
    "tables",
    "to_json",
    "write_json",
    "write_parquet",
]
