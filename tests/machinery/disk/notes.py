"""The notes of a script on a store: its history, and facts that a queue's history does not contain.

A register is anything that was set: a policy, a progress, a schedule. After a crash it has the value that was answered
last, or one that was being set since. Times say where the manual clock stood.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from holdfast.testing.clock import START_MS
from tests.machinery.history import Line, encode_line, parse_lines


class _Note(msgspec.Struct, frozen=True, tag_field="is"):
    pass


class Setting(_Note, frozen=True):
    """Is being set; empty: is being removed."""

    register: str
    value: str


class Set(_Note, frozen=True):
    """The last setting of the register was answered."""

    register: str


class Time(_Note, frozen=True):
    now_ms: int


class Reached(_Note, frozen=True):
    """Note a named point of the script: its end, or the begin of a session."""

    what: str


Note = Setting | Set | Time | Reached

_LINE, _NOTE = b"h", b"n"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Note).decode

Say = Callable[[bytes], None]


class Notes:
    """Says everything to one place, so that there is one order."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def line(self, line: Line) -> None:
        self._say(_LINE + encode_line(line))

    def note(self, note: Note) -> None:
        self._say(_NOTE + _encode(note))

    def set(self, register: str, value: str, do: Callable[[], object]) -> None:
        self.note(Setting(register, value))
        do()
        self.note(Set(register))


def to_file(path: Path) -> Say:
    """Each in one write: a kill tears none of those before it."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def say(said: bytes) -> None:
        os.write(file, said + b"\n")

    return say


class Told:
    """The notes, read again."""

    def __init__(self, said: Iterable[bytes]) -> None:
        self.lines: list[Line] = []
        self.now_ms = START_MS
        self.reached: list[str] = []
        # Said while the store had stopped.
        self.lines_while_down: list[Line] = []
        # Of each register the values it may have.
        self.registers: dict[str, list[str]] = {}
        for each in said:
            kind, body = each[:1], each[1:]
            if kind == _LINE:
                lines = parse_lines(body)
                self.lines += lines
                if self.reached and self.reached[-1] == "down":
                    self.lines_while_down += lines
            elif kind == _NOTE:
                self._take(body)

    def _take(self, body: bytes) -> None:
        try:
            note = _decode(body)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return  # torn by the kill
        match note:
            case Time():
                self.now_ms = note.now_ms
            case Reached():
                self.reached.append(note.what)
            case Setting():
                self.registers.setdefault(note.register, [""]).append(note.value)
            case Set():
                del self.registers[note.register][:-1]


def read_notes(path: Path) -> Told:
    return Told(path.read_bytes().split(b"\n") if path.exists() else [])
