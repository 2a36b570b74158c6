"""Shapes in signatures are checked while testing. The doors (choose, trace) are left out: they check by themselves."""

from jaxtyping import install_import_hook

HOOKED = [
    "telescope.attention",
    "telescope.engines.reference",
    "telescope.engines.sdpa",
    "telescope.layers",
]
install_import_hook(HOOKED, "beartype.beartype")
