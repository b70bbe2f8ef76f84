"""The questions that an agent may ask its living ranks, and their answers to them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec

from hpcdist.rank import debugging
from hpcdist.rank.collectives import C10D, Collectives, own_collectives
from hpcdist.rank.inquiry import MOST_ANSWER_BYTES, Desk
from hpcdist.rank.on_import import on_import
from hpcdist.rank.stacks import ThreadStack, own_threads

_MAKES_GROUP = "_new_process_group_helper"
"""Called for each process group, by this name within its module (torch 2.6 to 2.15)."""
_MOST_INNERMOST = 8
"""Frames of each thread where all of all threads would be too many."""


class Where(msgspec.Struct, frozen=True, tag_field="wants", tag="where"):
    """The agent wants to know where the rank is; an Account is the answer."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's word on where it is."""

    collectives: Collectives
    threads: list[ThreadStack]
    """The main one first."""


class Debug(msgspec.Struct, frozen=True, tag_field="wants", tag="debug"):
    """The agent wants the rank to wait for a debugger; a Debugger is the answer."""

    wait_s: float
    """The rank goes on after so long without one."""


Question = Where | Debug
WHERE = msgspec.json.encode(Where())
_QUESTION: msgspec.json.Decoder[Question] = msgspec.json.Decoder(Question)


def answer_questions(desk: Desk, note_debugger: Callable[[bool], None]) -> None:
    """Answer the agent's questions from the first process group on: a program without one has no
    thread more than it makes. `note_debugger` is told whether a debugger holds the rank."""

    def answer(question: bytes) -> bytes:
        match _QUESTION.decode(question):
            case Where():
                return _own_account()
            case Debug(wait_s=wait_s):
                return msgspec.json.encode(debugging.listen(wait_s, note_debugger))

    def attend_with_groups(module: ModuleType) -> None:
        make = getattr(module, _MAKES_GROUP, None)
        if make is None:  # another release
            return

        @functools.wraps(make)
        def make_group(*args: Any, **kwargs: Any) -> Any:
            desk.attend(answer)
            return make(*args, **kwargs)

        setattr(module, _MAKES_GROUP, make_group)

    on_import({C10D: attend_with_groups})


def read_account(answer: bytes | None) -> Account | None:
    """Return what a rank has answered; None where that is no account: the program can write there,
    too."""
    try:
        return msgspec.json.decode(answer or b"", type=Account)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _own_account() -> bytes:
    """Return this process' account as JSON, without the oldest operations and the outer frames
    where it is too long."""
    threads = own_threads()
    for newest in (16, 4, 1):
        text = _encode(_collectives(newest), threads)
        if len(text) <= MOST_ANSWER_BYTES:
            return text
        threads = [
            msgspec.structs.replace(thread, frames=thread.frames[:_MOST_INNERMOST])
            for thread in threads
        ]
    return _encode(Collectives(is_recorded=False), threads[:1])


def _collectives(newest: int) -> Collectives:
    try:
        return own_collectives(newest)
    except Exception:  # noqa: BLE001 - another version of torch: the stacks tell, too
        return Collectives(is_recorded=False)


def _encode(collectives: Collectives, threads: list[ThreadStack]) -> bytes:
    return msgspec.json.encode(Account(collectives=collectives, threads=threads))
