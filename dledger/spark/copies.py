"""Copies of log entries in the other replicas of a broker group. They are read where the chosen replica is
damaged, if the user gave several replicas.

Entries that a replica knows to be committed are the same in all replicas of the group, at the same places of
the log. So an entry may be taken from any replica that has it whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from dledger.audit.scan import Window
from dledger.audit.store_directory import Replica, StoreError, open_store
from dledger.runtime.remote_files import files_for
from dledger.spark.entry_ranges import Ints, read_windows
from dledger.spark.expected import Expected
from dledger.spark.stores import pieces


class DamageWarning(UserWarning):
    """Damaged or lost entries of a store were read from another replica. The text names both stores."""


Places = tuple[tuple[str, str], ...]
"""Where replicas are: (store, directory of the replica in it)."""


@dataclass(frozen=True)
class Copy:
    """A window from another replica. `keys`: the number of each of its entries, by which the reader asked for
    them."""

    keys: Ints
    window: Window
    expected: Expected | None = None


class Copies(Protocol):
    """Where else entries can be found. Entries have numbers (keys), such as their indexes."""

    def __len__(self) -> int:
        """How many other replicas there are."""

    def place(self, number: int) -> str:
        """Return the directory of a replica."""

    def read(self, number: int, first: int, last: int) -> Iterator[Copy]:
        """Yield the entries with keys `first` to `last`, ascending, as far as the replica has them. They may
        be damaged. Raises StoreError or OSError."""

    def keys(self, window: Window) -> Ints:
        """Return the keys of the entries in a window of the replica that is damaged."""


@dataclass(frozen=True)
class OtherReplicas:
    """Other replicas of the same group, each as (store, directory of the replica in it). They are opened when
    the first damaged entry is met."""

    places: Places = ()

    @cached_property
    def opened(self) -> tuple[Replica, ...]:
        """The replicas that can be opened."""
        found: list[Replica] = []
        for store, directory in self.places:
            # If no other replica helps either, the reader reports the damage.
            with suppress(StoreError, OSError):
                replicas = open_store(files_for(store), store)
                found += [replica for replica in replicas if replica.directory == directory]
        return tuple(found)


@dataclass(frozen=True)
class LogCopies:
    """The `Copies` for a part of the log. Keys are the indexes of entries."""

    others: OtherReplicas = field(default_factory=OtherReplicas)

    def __len__(self) -> int:
        return len(self.others.places) and len(self.others.opened)

    def place(self, number: int) -> str:
        return self.others.opened[number].directory

    def read(self, number: int, first: int, last: int) -> Iterator[Copy]:
        replica = self.others.opened[number]
        end = min(last, replica.committed)
        if first > end:
            return
        for piece in pieces(replica, end, [(first, end)], target=None):
            for window in read_windows(piece):
                index = window.columns.index
                inside = (index >= first) & (index <= end)
                if inside.any():
                    columns = window.columns[inside]
                    yield Copy(columns.index, Window(window.data, window.base, columns))

    def keys(self, window: Window) -> Ints:
        return np.asarray(window.columns.index)


NO_COPIES = LogCopies()


def warn(store: str, what: str, why: str, other: str) -> None:
    """Warn that entries of a store were read from another replica."""
    text = (
        f"{store}: {what} cannot be read here ({why}). Nothing is missing in the result, because {other} has "
        f"it: run 'dledger audit {store} {other}' for a report"
    )
    warnings.warn(text, DamageWarning, stacklevel=2)


def others_of(replica: Replica, replicas: Sequence[Replica]) -> Places:
    """Return the places of the other replicas of the same group, those with the highest committed index
    first. Stores without an identity count as one group."""
    same = [one for one in replicas if one.directory != replica.directory and _group(one) == _group(replica)]
    return tuple((one.store, one.directory) for one in sorted(same, key=lambda one: -one.committed))


def _group(replica: Replica) -> tuple[str, str]:
    return (replica.identity.cluster, replica.identity.group) if replica.identity else ("", "")
