"""What a server's links are made of: a token and names of the user's own, and a QR code."""

import re
from importlib import import_module
from typing import Any

# What --token takes: letters that stand in an address as they are, enough of them to be hard to
# guess where wrong tokens are slowed down.
TOKEN = re.compile(r"[A-Za-z0-9._~-]{8,128}", re.ASCII)
FEWEST_LETTERS = 5  # different ones in a token
NAME = re.compile(
    r"(?:(https?)://)?((?:[a-z0-9][a-z0-9.-]{0,252}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?)/?",
    re.ASCII,
)
QUIET_ZONE = 2  # light modules around a QR code, which cameras need


def check_token(token: str) -> None:
    """Raise a ValueError for a token that is easily guessed, or does not fit into a link."""
    if not TOKEN.fullmatch(token):
        raise ValueError(
            "--token must have 8 to 128 letters, digits, or any of . _ ~ - and no others, since it "
            "stands in a link; such as --token orion-3-sirius"
        )
    if len(set(token.lower())) < FEWEST_LETTERS:
        raise ValueError(
            f"--token has fewer than {FEWEST_LETTERS} different letters, which is easily guessed; "
            "such as --token orion-3-sirius"
        )


def origins_of(name: str) -> list[str]:
    """Return the origins of a name that --name adds: itself, or without a scheme those of both;
    raise a ValueError for anything else.
    """
    found = NAME.fullmatch(name.lower())
    if found is None:
        raise ValueError(
            f'--name "{name[:80]}" is not a name such as school.example, or an address such as '
            "https://school.example"
        )
    scheme, host = found.groups()
    return [f"{one}://{host}" for one in ([scheme] if scheme else ["http", "https"])]


def is_bare(name: str) -> bool:
    """Return whether a name has neither a scheme nor a port."""
    return "://" not in name and not re.search(r":[0-9]+/?$", name)


def qr_code(link: str, columns: int) -> str | None:
    """Return a QR code of a link for a terminal, dark on light whatever its colours; None if it is
    too wide, or segno is not installed.
    """
    try:
        segno: Any = import_module("segno")
    except ImportError:
        return None
    modules = [
        [bool(one) for one in row] for row in segno.make(link, micro=False, error="l").matrix
    ]
    width = len(modules[0]) + 2 * QUIET_ZONE
    if width > columns:
        return None
    light = [[False] * width for _ in range(QUIET_ZONE)]
    side = [False] * QUIET_ZONE
    rows = [*light, *([*side, *row, *side] for row in modules), *light]
    if len(rows) % 2:
        rows.append(light[0])
    # A character holds two modules, one above the other: black, on white, in exact colours.
    pairs = [
        "".join(" ▀▄█"[above + 2 * below] for above, below in zip(upper, lower, strict=True))
        for upper, lower in zip(rows[::2], rows[1::2], strict=True)
    ]
    return "\n".join(f"\x1b[38;5;16;48;5;231m{line}\x1b[0m" for line in pairs)
