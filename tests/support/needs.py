"""What a test needs and a machine may lack: data that are not in the repository, and a triton that runs.

The data lie in a folder beside the repository, or in the one that TELESCOPE_DATA names.
"""

import os
from pathlib import Path

import numpy
import pytest
import torch
from packaging.version import Version

from support.interpreting import patch_language_once

DATA = Path(os.environ.get("TELESCOPE_DATA", Path(__file__).parents[3] / "shared" / "data"))


def need_data(name):
    """Return a folder of data; skip the test where there is none."""
    if not (DATA / name).is_dir():
        pytest.skip(f"there is no {DATA / name}; TELESCOPE_DATA says where the data are")
    return DATA / name


def need_triton():
    """Skip the test where no triton kernel can run."""
    triton = pytest.importorskip("triton")
    # As versions, not as strings: "3.10" < "3.7" would skip the tests of a newer triton.
    is_refused = Version(triton.__version__) < Version("3.7") and Version(numpy.__version__) >= Version("2.4")
    if is_refused and not torch.cuda.is_available():
        reason = "the interpreter of triton 3.6 converts arrays to numbers in a way that numpy 2.4 refuses"
        pytest.skip(reason, allow_module_level=True)
    if os.environ.get("TRITON_INTERPRET") == "1":
        patch_language_once()
