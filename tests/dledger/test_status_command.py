"""`dledger status`: reasons below its table, and nodes that are not of one group."""

from __future__ import annotations

import json
from typing import Any, Self

import pytest

from dledger.commands import log as program
from tests.command_line import run

PEERS = {"n0": "h0:1", "n1": "h1:1", "n2": "h2:1"}


class FakeClient:
    """Stands for the connections: what each node answers; None for one that does not."""

    def __init__(self, answers: dict[str, dict[str, Any] | None]) -> None:
        self._answers = {PEERS[node]: answer for node, answer in answers.items()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def metadata(self, address: str) -> dict[str, Any]:
        answer = self._answers[address]
        if answer is None:
            raise ConnectionRefusedError("the port is closed")
        return answer


def row(node: str, cluster: str, *reasons: str, role: str = "FOLLOWER") -> dict[str, Any]:
    indexes = dict.fromkeys(("end_index", "durable_index", "committed_index"), 7)
    return {
        "id": node,
        "role": role,
        "term": 3,
        "cluster": cluster,
        "reasons": list(reasons),
        **indexes,
    }


def status(
    monkeypatch: pytest.MonkeyPatch, *answers: dict[str, Any] | None, words: tuple[str, ...] = ()
) -> int:
    monkeypatch.setattr(program, "open_client", lambda *_: FakeClient(dict(zip(PEERS, answers, strict=True))))
    peers = ";".join(f"{node}-{address}" for node, address in PEERS.items())
    return run("status", "--peers", peers, *words)


def test_a_line_for_each_reason_follows_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leader = row("n0", "c", role="LEADER")
    leader["statements"] = ["n2 waits"]
    assert status(monkeypatch, leader, row("n1", "c", "one", "another"), row("n2", "", "a third")) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[4:] == ["n0: n2 waits", "n1: one", "n1: another", "n2: a third"] and not err


def test_a_node_with_a_reason_is_a_warning_and_a_statement_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = row("n0", "c", role="LEADER")
    assert status(monkeypatch, leader, row("n1", "c"), row("n2", "c")) == 0
    assert status(monkeypatch, leader, row("n1", "c"), row("n2", "", "waits")) == 1
    leader["statements"] = ["it was so"]
    assert status(monkeypatch, leader, row("n1", "c"), row("n2", "c")) == 0


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_nodes_of_different_clusters_are_an_error(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leader = row("n0", "old", role="LEADER")
    assert status(monkeypatch, leader, row("n1", "new"), row("n2", "old"), words=words) == 2
    out, err = capsys.readouterr()
    assert err == "status: these nodes are not one group: n0 n2 of cluster old, n1 of cluster new\n"
    if words:
        assert [node["cluster"] for node in json.loads(out)["nodes"]] == ["old", "new", "old"]


def test_a_node_that_does_not_answer_is_of_no_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(monkeypatch, row("n0", "c", role="LEADER"), None, row("n2", "c")) == 1
    assert not capsys.readouterr().err


def test_without_a_leader_it_is_an_error_and_without_an_answer_nothing_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert status(monkeypatch, row("n0", "c"), None, row("n2", "c")) == 2
    assert status(monkeypatch, None, None, None) == 4
