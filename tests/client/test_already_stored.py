"""The answer to a batch of which some messages are stored already."""

from __future__ import annotations

import pytest

from dledger.client.errors import AlreadyStored, SendFailed, refused_send
from dledger.remoting.codes import STORED_NUMBERS, ResponseCode
from dledger.remoting.commands import Response


def answer(code: int, **ext: str) -> Response:
    return Response(code=code, opaque=1, remark="2 of 3 messages are stored already", ext=ext)


def test_it_says_which_messages_are_stored() -> None:
    error = refused_send(answer(ResponseCode.ALREADY_STORED, **{STORED_NUMBERS: "0,2"}))
    assert isinstance(error, AlreadyStored) and error.stored == {0, 2}
    assert error.code == 28010 and "2 of 3 messages" in str(error)


@pytest.mark.parametrize("numbers", ["", "x", "1,,2", "-1"])
def test_one_that_says_it_badly_is_a_refusal(numbers: str) -> None:
    for ext in ({STORED_NUMBERS: numbers}, {}):
        error = refused_send(answer(ResponseCode.ALREADY_STORED, **ext))
        assert isinstance(error, SendFailed) and error.code == 28010


def test_other_codes_are_refusals() -> None:
    error = refused_send(answer(ResponseCode.ILLEGAL_OPERATION, **{STORED_NUMBERS: "0"}))
    assert isinstance(error, SendFailed) and "604 ILLEGAL_OPERATION" in str(error)
