"""Changes to a file: in its structure, as its ending says, or in its bytes."""

import gzip
import json
import struct
from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any

Files = dict[str, bytes]

# What json.dumps cannot write; see `dumped`
DEEP = "@deep@"
MANY = "@many@"
STRANGE: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        7,
        255,
        2**31,
        2**31 - 1,
        2**63,
        2**63 - 1,
        -(2**63),
        10**30,
        10**400,
    ),
    *(0.5, -0.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), -float("inf")),
    *(
        "",
        "x",
        "0",
        "\ud800",
        "\0",
        "\n",
        "a" * 5000,
        "../../etc/passwd",
        "é",
        "\u202e",
        "causal",
        "softmax",
    ),
    *([], {}, [[]], [None], {"": None}, ["x"], [-1], [0] * 3, [1.5], [1e400], DEEP, MANY),
    *(
        {"is": "Causal"},
        {"is": "Mask"},
        {"is": "Both", "masks": []},
        {"is": "Window", "size": 1.5},
        {"is": "Dot"},
    ),
    *(
        {"is": "Attention"},
        {"is": "Combination", "masks": ["x"]},
        {"is": "OfPositions", "function": "x"},
    ),
    *(
        {"tensor": "attention.0"},
        {"tensor": "nothing"},
        {"normalizer": "by_sum"},
        {"untold": "mask", "name": "x"},
    ),
)
# Parts of a definition, most of which could stand in one; whether they fit is what has to be found.
CAUSAL = {"is": "Causal"}
TENSOR = {"tensor": "attention.0"}
PARTS: tuple[Any, ...] = (
    *(
        CAUSAL,
        {"is": "Everyone"},
        {"is": "Window", "size": 2},
        {"is": "Prefix", "size": 3},
        {"is": "General", "W": TENSOR},
    ),
    *(
        {"is": "Both", "masks": [CAUSAL, {"is": "Window", "size": 2**40}]},
        {"is": "Opposite", "mask": CAUSAL},
    ),
    *(
        {"is": kind, field: TENSOR}
        for kind, field in (("Lengths", "lengths"), ("Left", "left"), ("Keep", "keep"))
    ),
    *({"is": kind, "tensor": TENSOR} for kind in ("FromTensor", "FromAdditive")),
    *(
        {"is": "Documents", "keys": TENSOR},
        {"is": "Alibi", "slopes": TENSOR},
        {"is": "Relative", "table": TENSOR},
    ),
    *(
        {"is": "Additive", "W_q": TENSOR, "W_k": TENSOR, "v": TENSOR},
        {"untold": "bias", "name": "mine"},
    ),
    *(
        {"is": "Renumbered", "mask": {"is": "Keep", "keep": TENSOR}, "numbering": numbering}
        for numbering in (
            {"is": "LaterKeys", "gone": 2},
            {"is": "SomeHeads", "which": TENSOR, "of": 4},
            {"is": "SomeQueries", "which": TENSOR, "of": [5, 5]},
            {"is": "SomeSequences", "which": TENSOR, "of": 2},
            {"is": "BeforeRoom", "keys": 9, "behind": TENSOR},
        )
    ),
)


def dumped(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=True)
    deep = "[" * 3000 + "]" * 3000
    return (
        text.replace(f'"{DEEP}"', deep).replace(f'"{MANY}"', "[" + "0," * 200_000 + "0]").encode()
    )


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the path of every value inside."""
    yield at
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in inside:
        yield from places(part, (*at, key))


def reach(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def changed(value: Any, dice: Random) -> Any:
    """Return a JSON value with one change inside."""
    found = list(places(value))
    inside = [path for path in found if "attention" in path]
    if inside and dice.random() < 0.5:
        *path, last = dice.choice(inside)
        reach(value, tuple(path))[last] = deepcopy(dice.choice((*PARTS, *PARTS, *STRANGE)))
        return value
    *path, last = dice.choice(found[1:] if len(found) > 1 else [(None,)])
    if last is None:
        return deepcopy(dice.choice(STRANGE))
    parent = reach(value, tuple(path))
    old = parent[last]
    match dice.randrange(9):
        case 0:
            del parent[last]
        case 1 if isinstance(parent, dict):
            parent[dice.choice([f"{last}x", "", "\ud800", str(last)[:-1], str(last).upper()])] = (
                parent.pop(last)
            )
        case 2:
            parent[last] = deepcopy(reach(value, dice.choice(found)))  # another part of itself
        case 3 if isinstance(old, int | float) and old == old:
            numbers = (
                -old,
                old + 1,
                old - 1,
                old * 2,
                old * 10**20,
                float(old) if abs(old) < 1e300 else 0.5,
                str(old),
            )
            parent[last] = dice.choice(numbers)
        case 4:
            parent[last] = [old] if dice.random() < 0.5 else {"is": old}
        case 5 if isinstance(parent, list):
            parent.insert(last, old)
        case _:
            parent[last] = deepcopy(dice.choice(STRANGE))
    return value


def of_json(contents: bytes, dice: Random) -> bytes:
    try:
        value = json.loads(contents)
    except ValueError:
        return of_bytes(contents, dice)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        value = changed(value, dice)
    made = dumped(value)
    if dice.random() < 0.03 and made.startswith(b"{") and isinstance(value, dict) and value:
        name = next(iter(value))
        made = (
            b"{" + dumped(name) + b":" + dumped(value[name]) + b"," + made[1:]
        )  # the same field twice
    return made


def of_safetensors(contents: bytes, dice: Random) -> bytes:
    """Change the header as JSON, with the right length, or change the numbers."""
    try:
        length = struct.unpack("<Q", contents[:8])[0]
        header = json.loads(contents[8 : 8 + length])
        numbers = bytearray(contents[8 + length :])
    except (ValueError, struct.error):
        return of_bytes(contents, dice)
    match (
        dice.randrange(6) if "__metadata__" not in header else dice.choice((0, 1, 2, 3, 4, 4, 4, 5))
    ):
        case 0 if len(numbers) > 8:
            at = dice.randrange(len(numbers) - 8)
            numbers[at : at + 8] = dice.choice(
                [b"\xff" * 8, b"\x00" * 8, dice.randbytes(8), struct.pack("<q", 2**40)]
            )
        case 1:
            return (
                struct.pack("<Q", dice.choice([0, length + 1, length - 1, 2**63, 2**64 - 1]))
                + contents[8:]
            )
        case 2:
            names = [name for name in header if name != "__metadata__"]
            tensor = header[dice.choice(names)]
            tensor["dtype"] = dice.choice(
                ["F16", "BF16", "F32", "I32", "I64", "U8", "BOOL", "F8_E4M3", "F4", "x"]
            )
            if tensor["shape"] and dice.random() < 0.7:
                size = {"F16": 2, "BF16": 2, "F32": 4, "I32": 4, "I64": 8}.get(tensor["dtype"], 1)
                first, past = tensor["data_offsets"]
                tensor["shape"] = (
                    [(past - first) // size] if dice.random() < 0.5 else [1, (past - first) // size]
                )
        case 3:
            names = [name for name in header if name != "__metadata__"]
            dice.choice([list.reverse, list.clear, lambda it: it.insert(0, 1)])(
                header[dice.choice(names)]["shape"]
            )
        case 4 if "atlas" in header.get(
            "__metadata__", {}
        ):  # the description of a part of an unfinished atlas
            header["__metadata__"]["atlas"] = of_json(
                header["__metadata__"]["atlas"].encode(), dice
            ).decode()
        case _:
            header = changed(header, dice)
    made = dumped(header)
    return struct.pack("<Q", len(made)) + made + bytes(numbers)


def of_bytes(contents: bytes, dice: Random) -> bytes:
    if not contents:
        return dice.randbytes(9)
    corrupted = bytearray(contents)
    at = dice.randrange(len(contents))
    match dice.randrange(6):
        case 0:
            corrupted[at] ^= 1 << dice.randrange(8)
        case 1:
            del corrupted[at:]
        case 2:
            corrupted[at:at] = dice.choice(
                [b"\xff\xfe", b"\0", b"\r", "\u2028\ufeff".encode(), b"9" * 5000, b"[" * 9000]
            )
        case 3:
            corrupted[at : at + 4] = struct.pack("<i", dice.choice([-1, 0, 2**31 - 1, -(2**31), 5]))
        case 4:
            corrupted += dice.randbytes(dice.choice([1, 8, 500]))
        case _:
            del corrupted[at : at + dice.choice([1, 4, 40])]
    return bytes(corrupted)


VALUE = (
    "99999999999999999999999",
    "10000000000",
    "1000000",
    "-1",
    "0",
    "1e400",
    "nan",
    "inf",
    "1.5",
    "'x'",
    "''",
)
VALUE += ("[]", "{}", "[1]", "['generate']", "true", "1979-05-27", "'\u2028'", "2", "300")


def of_toml(contents: bytes, dice: Random) -> bytes:
    """Change a line: another value, no value, duplicated, misspelt or removed; or rename a
    table.
    """
    lines = contents.decode("utf-8").split("\n")
    parsed = [i for i, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    tables = [i for i, line in enumerate(lines) if line.startswith("[")]
    for _ in range(dice.choice((1, 1, 2))):
        at = dice.choice(parsed or [0])
        name, _, value = lines[at].partition(" = ")
        match dice.randrange(8):
            case 0:
                lines[at] = ""
            case 1:
                lines[at] = f"{name[:-1] or 'x'} = {value}"
            case 2:
                lines[at] += "\n" + lines[at]
            case 3 if tables:
                lines[dice.choice(tables)] = dice.choice(
                    ["", "[nothing]", "[[model]]", "[model.more]", "[training]"]
                )
            case 4:
                lines[at] = f"{name} = {'[' * 3000}{']' * 3000}" if dice.random() < 0.3 else name
            case _:
                lines[at] = f"{name} = {dice.choice(VALUE)}"
    return "\n".join(lines).encode()


def of_text(contents: bytes, dice: Random) -> bytes:
    """Change lines and columns; where the text is JSON, its structure."""
    if contents[:1] in b"[{" and dice.random() < 0.7:
        first, newline, rest = contents.partition(b"\n")
        return of_json(first, dice) + newline + rest
    lines = contents.split(b"\n")
    at = dice.randrange(len(lines))
    match dice.randrange(5):
        case 0:
            lines[at] += b"\t" + lines[at]
        case 1:
            del lines[at]
        case 2:
            lines[at] = dice.choice([b"", b"\t", b"\xff", b"\0", "\u2028".encode(), b"x" * 9000])
        case _:
            return of_bytes(contents, dice)
    return b"\n".join(lines)


def of_gzip(contents: bytes, dice: Random) -> bytes:
    chance = dice.random()
    if chance < 0.01:
        return gzip.compress(bytes(1 << 20)) * 4096  # four gigabytes
    if chance < 0.3:
        return of_bytes(contents, dice)
    return gzip.compress(of_text(gzip.decompress(contents), dice))
