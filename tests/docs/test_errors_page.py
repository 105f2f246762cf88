"""docs/reference/errors.md names every exception and code: the rules behind its generated parts."""

from __future__ import annotations

from enum import IntEnum

import pytest

import dledger
from dledger.client import ClientError
from tests.docs import error_tables
from tests.docs.error_tables import exceptions, known, misplaced, of_codes


def test_public_exceptions_are_explained_and_not_called_internal() -> None:
    public = {name for name in dledger.__all__ if _is_exception(getattr(dledger, name))}
    assert len(public) >= 14
    assert sorted(public - known()["clients"].keys()) == []


def _is_exception(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, Exception)


def test_every_error_of_the_clients_is_explained() -> None:
    """A class below ClientError may come out of any call of a client."""
    waiting, below = [ClientError], set()
    while waiting:
        kind = waiting.pop()
        if kind.__module__.startswith("dledger.bench"):
            continue  # of measurements: no call of a client raises it
        below.add(kind.__name__)
        waiting += kind.__subclasses__()
    unexplained = below - known()["clients"].keys() - set(known()["internal"]["names"])
    assert sorted(unexplained) == []


def test_exceptions_are_found_by_their_bases() -> None:
    found = exceptions()
    assert {"ClientError", "NoBroker", "Refused", "Interrupted", "PortInUse"} <= found
    assert not {"Producer", "ClientOptions", "Step", "_Lost"} & found


@pytest.mark.parametrize(
    ("there", "seen", "internal", "sentence"),
    [
        (["A", "B"], ["A"], [], "B is missing in docs/data/errors.toml"),
        (["A"], ["A", "B"], [], "B is in docs/data/errors.toml, and there is no such exception"),
        (["A"], ["A"], ["C"], "C is in docs/data/errors.toml, and there is no such exception"),
        (["A"], ["A"], ["A"], "A is in two lists"),
    ],
)
def test_a_wrong_list_is_named(there: list[str], seen: list[str], internal: list[str], sentence: str) -> None:
    (found,) = misplaced(there, seen, internal)
    assert found.startswith(sentence)


def test_a_right_list_is_accepted() -> None:
    assert misplaced(["A", "B"], ["A"], ["B"]) == []


class Codes(IntEnum):
    GOOD = 0
    BAD = 1


def test_a_code_without_a_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_tables, "known", lambda: {"here": {"GOOD": ["fine", "nothing"]}})
    with pytest.raises(AssertionError, match=r"say in docs/data/errors\.toml what BAD means"):
        of_codes(Codes, ("here",), "here")


def test_a_text_without_a_code_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"GOOD": ["fine", "nothing"], "BAD": ["bad", "stop"], "WORSE": ["worse", "run"]}
    monkeypatch.setattr(error_tables, "known", lambda: {"here": rows})
    with pytest.raises(AssertionError, match=r"WORSE of docs/data/errors\.toml is no Codes"):
        of_codes(Codes, ("here",), "here")
