"""Read the codes that students hand in from the page's lessons; web/lessons/code.js writes them.

A code says which tries were solved and whether the first guess was right. Its checksum covers the
name, so that a code that was changed, mistyped or copied to another name is noticed. It proves
nothing: the page that makes it runs in the student's own browser.
"""

import re
import unicodedata
from dataclasses import dataclass

VERSION = "T1"  # counts on when tries are added or change their order
DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # without I, L, O and U
CHECKED = 8  # digits of the checksum: 40 bits
LONGEST_NAME = 60
LONGEST_LINE = 400
STATES = 5  # of one try: two tries are one digit, 25 of 32

TRIES = (
    "journey/alike",
    "journey/opposite",
    "qkv/most",
    "qkv/nothing",
    "scale/undivided",
    "scale/winner",
    "mask/first",
    "mask/taken",
    "bank/same",
    "heads/agree",
    "heads/control",
    "translate/from",
    "translate/order",
    "next/heat",
    "next/beginning",
)
"""The tries of the page's lessons, in the order of a code."""


@dataclass(frozen=True)
class TryResult:
    """How far a student came with one try.

    Attributes:
        tried: whether there was a guess; first_guess: whether the first one was right.
        solved: whether it was done, as the page judged.
        first_guess: whether the first guess was right.

    Example:
        >>> from telescope.lessons import TryResult
        >>> TryResult(tried=True, first_guess=False, solved=True).solved
        True
    """

    tried: bool
    first_guess: bool
    solved: bool


@dataclass(frozen=True)
class QuizResult:
    """What a code says: the name, and the result of every try by lesson and name.

    Attributes:
        name: whose code it is.
        tries: the `TryResult` of each try, by lesson and name.

    Example:
        >>> from telescope.lessons import QuizResult, TryResult
        >>> code = QuizResult(
        ...     "Ada",
        ...     {"T1 scale": TryResult(tried=True, first_guess=False, solved=True)},
        ... )
        >>> code.solved, code.first_guesses
        (1, 0)
    """

    name: str
    tries: dict[str, TryResult]

    @property
    def solved(self) -> int:
        """Return how many tries were solved."""
        return sum(one.solved for one in self.tries.values())

    @property
    def first_guesses(self) -> int:
        """Return how many first guesses were right."""
        return sum(one.first_guess for one in self.tries.values())


def read_code(line: str) -> QuizResult:
    """Return what a line such as "Ada: T1-2K8FQ2M0-7H3JQ0ZD" says.

    Args:
        line: the name, a colon and the code.

    Raises:
        ValueError: there is no code, the code is of another version of the lessons, or code and
            name do not fit each other.

    Example:
        >>> from telescope.lessons import read_code
        >>> try:
        ...     read_code("Ada")
        ... except ValueError as problem:
        ...     print(type(problem).__name__)
        ValueError
    """
    if len(line) > LONGEST_LINE:
        raise ValueError(f"the line has more than {LONGEST_LINE} signs: it is no name with a code")
    found = re.match(
        r"^(?:(.*?)[ :])?([Tt]\w+) ?- ?(\w+) ?- ?(\w+)$", _on_one_line(line), flags=re.ASCII
    )
    if found is None:
        raise ValueError("there is no code like T1-…-… at the end of the line")
    before, version, *given = found.groups(default="")
    name = _plain_name(before)
    if version.upper() != VERSION:
        raise ValueError(f"the code is of another version of the lessons (not {VERSION})")
    payload, check = (part.upper().translate(_MISREAD) for part in given)
    length = -(-len(TRIES) // 2)
    if len(payload) != length or len(check) != CHECKED:
        raise ValueError(
            f"the code is not whole: it has {len(payload)} and {len(check)} signs, not {length} "
            f"and {CHECKED}"
        )
    if _check_of(payload, name) != check:
        raise ValueError("the code does not fit its name: one of them was changed or mistyped")
    # Each sign holds two tries; only a page of another version could write more.
    digits = [digit for sign in payload for digit in divmod(DIGITS.find(sign), STATES)]
    if min(digits) < 0 or max(digits) >= STATES or any(digits[len(TRIES) :]):
        raise ValueError("the code holds what no page writes")
    results = (
        TryResult(tried=digit > 0, first_guess=digit in (2, 4), solved=digit > 2)
        for digit in digits[: len(TRIES)]
    )
    return QuizResult(name, dict(zip(TRIES, results, strict=True)))


_MISREAD = str.maketrans({"O": "0", "I": "1", "L": "1"})


def _on_one_line(text: str) -> str:
    """Return a text on one line, with single spaces."""
    return re.sub(r"[\s\x00-\x1f\x7f-\x9f\ufeff]+", " ", text).strip()


def _plain_name(name: str) -> str:
    """Return a name as it is checked: on one line, without a colon at its end, and without halves
    of characters.
    """
    whole = re.sub("[\ud800-\udfff]", "\ufffd", _on_one_line(name))
    return unicodedata.normalize("NFC", whole)[:LONGEST_NAME].rstrip(" :")


def _check_of(payload: str, name: str) -> str:
    """Return the checksum of a code and its name: FNV-1a of the UTF-8, mixed once more."""
    mask = (1 << 64) - 1
    value = 0xCBF29CE484222325
    for byte in f"{VERSION}-{payload}-{name}".encode():
        value = ((value ^ byte) * 0x100000001B3) & mask
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value = ((value ^ (value >> 33)) * factor) & mask
    value ^= value >> 33
    return "".join(DIGITS[(value >> (5 * at)) & 31] for at in reversed(range(CHECKED)))
