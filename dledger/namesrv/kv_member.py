"""One member of the group of NameServers that PySyncObj (a library for Raft) forms. It has the replicated
table, and reports what happens on PySyncObj's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, SyncObjConsumer, replicated

from dledger.namesrv.kv import table_full

MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.4, 1.2
"""Shortest and longest election time-out, in seconds."""
RETRY_S = 0.5
"""Pause between two attempts to reach a member, in seconds."""
MAX_QUEUE = 20_000
"""Largest number of changes that wait for PySyncObj to begin with them."""

_NOT_EXECUTED = {
    FAIL_REASON.QUEUE_FULL: "too many changes wait",
    FAIL_REASON.MISSING_LEADER: "there is no leader among kvPeers",
    FAIL_REASON.REQUEST_DENIED: "the leader refused it",
}
_NOT_HEARD = (
    "this server lost contact with the leader of kvPeers, or learned of another leader, and does not "
    "know whether the change was made"
)
"""Text for an unknown outcome. PySyncObj has only one reason for two causes. If a server stood still, it has
not heard from any member when it continues, although the leader may still lead."""
_Applied = Callable[[str, str, str | None], None]
_Replaced = Callable[[dict[str, dict[str, str]]], None]
_Outcome = Callable[[str | None, str | None, bool], None]
"""Called with the table's answer, with the reason why there is no answer, and with whether the change may
have been made anyway."""


def why_no_answer(reason: int) -> tuple[str, bool]:
    """Return the text for PySyncObj's reason why a change has no answer, and whether the change may have been
    made anyway."""
    text = _NOT_EXECUTED.get(reason)
    return (_NOT_HEARD, True) if text is None else (text, False)


class _Table(SyncObjConsumer):  # type: ignore[misc]  # PySyncObj has no types
    """The replicated table. All of its methods run on PySyncObj's thread."""

    def __init__(self, applied: _Applied, replaced: _Replaced) -> None:
        self._on_applied = applied
        self._on_replaced = replaced
        super().__init__()  # attributes set before this call are not replicated
        self.table: dict[str, dict[str, str]] = {}
        self.count = 0

    @replicated  # type: ignore[untyped-decorator]
    def put(self, namespace: str, key: str, value: str | None) -> str | None:
        """Set a value, or delete it if `value` is None. Returns None if that is done, otherwise why it is
        refused, which is the same on all members."""
        entries = self.table.get(namespace, {})
        if value is None:
            if key not in entries:
                return None
            del entries[key]
            self.count -= 1
            if not entries:
                del self.table[namespace]
        else:
            if key not in entries:
                refused = table_full(self.count)
                if refused is not None:
                    return refused
                self.count += 1
            self.table.setdefault(namespace, {})[key] = value
        self._on_applied(namespace, key, value)
        return None

    def _deserialize(self, data: Any) -> None:
        super()._deserialize(data)
        self._on_replaced({name: dict(entries) for name, entries in self.table.items()})


class KvMember:
    """A member of the group. Without an address it is an observer, which receives changes but does not vote.
    Raises OSError if its address cannot be used."""

    def __init__(
        self,
        address: str | None,
        others: list[str],
        directory: str,
        password: str | None,
        applied: _Applied,
        replaced: _Replaced,
    ) -> None:
        self._table = _Table(applied, replaced)
        config = SyncObjConf(
            password=password,
            journalFile=f"{directory}/journal",
            fullDumpFile=f"{directory}/dump",
            raftMinTimeout=MIN_TIMEOUT_S,
            raftMaxTimeout=MAX_TIMEOUT_S,
            connectionRetryTime=RETRY_S,
            commandsQueueSize=MAX_QUEUE,
            commandsWaitLeader=True,
            useFork=False,  # this process has threads
        )
        self._sync = SyncObj(address, others, config, consumers=[self._table])

    @property
    def ready(self) -> bool:
        """Whether this member has everything that existed when it began."""
        return bool(self._sync.isReady())

    @property
    def leader(self) -> object:
        """The leader, as far as this member knows; None if it knows none."""
        return self._sync.getStatus()["leader"]

    @property
    def caught_up(self) -> bool:
        """Whether everything that the leader has committed is applied here."""
        status = self._sync.getStatus()
        committed = status["leader_commit_idx"]
        known = committed is not None and status["leader"] is not None
        return known and bool(status["last_applied"] >= committed)

    def change(self, namespace: str, key: str, value: str | None, done: _Outcome) -> None:
        """Propose a change. `done` is called on PySyncObj's thread; it may happen that it is never called."""

        def outcome(refused: str | None, reason: int) -> None:
            if reason == FAIL_REASON.SUCCESS:
                done(refused, None, True)
            else:
                done(None, *why_no_answer(reason))

        self._table.put(namespace, key, value, callback=outcome)

    def stop(self) -> None:
        """End the thread of this member. The call blocks for a short time."""
        self._sync.destroy_synchronous()
