"""Server side of the member operations of the DLedger client protocol: members, add, promote, remove, prefer,
transfer.

Only the leader answers. Other nodes answer with the leader's address, as for an append."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dledger.context.node_context import NodeContext
from dledger.election.configuration import MAX_ID, MAX_MEMBERS
from dledger.errors import ChangeRefused
from dledger.messages import Code
from dledger.node.parts import NodeParts
from dledger.peers.links import PeerConnection

Answer = Callable[..., None]
HAND_OVER_S = 2.0
"""Time-out, in seconds, of a hand-over when an operator removes the leader, or transfers leadership."""


class MemberRequests:
    """Handles the member operations. `answer(connection, number, code, **fields)` sends a response.
    `await_commit` sends the response after an entry is committed."""

    def __init__(
        self,
        context: NodeContext,
        parts: NodeParts,
        answer: Answer,
        await_commit: Callable[[int, PeerConnection, int], None],
    ) -> None:
        self._self_id = context.config.self_id
        self._elector = context.elector
        self._replicator = context.replicator
        self._leadership = parts.leadership
        self._membership = parts.membership
        self._changes = parts.reconfiguration
        self._answer = answer
        self._await_commit = await_commit

    def handle(self, connection: PeerConnection, number: int, header: dict[str, Any]) -> bool:
        """Handle a request if it is one of these operations; returns False if it is not."""
        operation = header.get("op")
        if operation not in ("members", "add", "promote", "remove", "prefer", "transfer"):
            return False

        async def work() -> None:
            try:
                await self._do(str(operation), connection, number, header)
            except ChangeRefused as refused:
                self._refuse(connection, number, refused)

        try:
            if not self._leadership.serving:
                raise ChangeRefused(Code.NOT_LEADER, "this node does not lead")
            self._changes.submit(work)
        except ChangeRefused as refused:
            self._refuse(connection, number, refused)
        return True

    async def _do(
        self, operation: str, connection: PeerConnection, number: int, header: dict[str, Any]
    ) -> None:
        changes = self._changes
        if operation == "members":
            if not self._leadership.serving:
                raise ChangeRefused(Code.NOT_LEADER, "this node does not lead")
            self._answer(connection, number, Code.SUCCESS, **changes.overview())
            return
        if operation == "prefer":
            index = changes.prefer(_nodes(header.get("nodes")))
        elif operation == "transfer":
            target = None if header.get("node") is None else _node(header)
            leader = await changes.transfer(target, HAND_OVER_S)
            self._answer(connection, number, Code.SUCCESS, leader=leader)
            return
        elif operation == "add":
            index = changes.add(_node(header), _text(header, "address"), header.get("stays") is True)
        elif operation == "promote":
            index = await changes.promote(_node(header))
        else:
            index = await self._remove(_node(header), header.get("force") is True)
        if index <= self._replicator.commit_index:
            self._answer(connection, number, Code.SUCCESS, index=index, term=self._elector.term)
        else:
            self._await_commit(index, connection, number)

    async def _remove(self, node: str, force: bool) -> int:
        """Remove a member. If the member is this leader, it hands over first, and the client repeats the
        request to the new leader."""
        changes = self._changes
        since = None if force else await changes.check_removal(node)
        if node == self._self_id:
            try:
                await changes.transfer(None, HAND_OVER_S)
            except ChangeRefused:
                # No node took over: it leaves when the entry is committed (if it still leads).
                return changes.remove(node, since)
            raise ChangeRefused(Code.NOT_LEADER, f"{node} has transferred leadership: ask its successor")
        return changes.remove(node, since)

    def _refuse(self, connection: PeerConnection, number: int, refused: ChangeRefused) -> None:
        fields: dict[str, Any] = {"text": refused.text}
        if refused.code is Code.NOT_LEADER:
            leader = self._elector.leader_id
            fields |= {"leader": leader, "address": self._membership.address(leader) if leader else None}
        self._answer(connection, number, refused.code, **fields)


def _text(header: dict[str, Any], name: str) -> str:
    value = header.get(name)
    if not isinstance(value, str) or not value:
        raise ChangeRefused(Code.UNEXPECTED_ARGUMENT, f"{name} is missing")
    return value


def _node(header: dict[str, Any]) -> str:
    node = _text(header, "node")
    if len(node) > MAX_ID:
        raise ChangeRefused(Code.UNEXPECTED_ARGUMENT, f"node: an id may have at most {MAX_ID} characters")
    return node


def _nodes(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or len(value) > MAX_MEMBERS
        or not all(isinstance(node, str) and len(node) <= MAX_ID for node in value)
    ):
        raise ChangeRefused(Code.UNEXPECTED_ARGUMENT, "nodes is not a list of node ids")
    return tuple(value)
