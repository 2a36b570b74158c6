"""What cannot be answered: a code for programs, one sentence for people, and the status that HTTP has for it."""

from ..words import one_line


class Refusal(Exception):  # noqa: N818  it is no fault of the program
    def __init__(self, status: int, code: str, message: str) -> None:
        """`message` is put on one line: it may quote what was asked."""
        super().__init__(message)
        self.status, self.code, self.message = status, code, one_line(message)


def bad(message: str) -> Refusal:
    return Refusal(400, "bad-parameter", message)


def unknown(message: str) -> Refusal:
    return Refusal(404, "unknown", message)


def not_kept(message: str) -> Refusal:
    return Refusal(409, "not-kept", message)
