"""The methods of the asynchronous client for programs without an event loop; each waits for the result.

Each method refers to the asynchronous one, and has its name, arguments and types.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from dledger.admin.accounts import Accounts
from dledger.admin.brokers import Brokers
from dledger.admin.groups import Groups
from dledger.admin.messages import Messages
from dledger.admin.namesrv import NameServers
from dledger.admin.offsets import Offsets
from dledger.admin.topics import Topics

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

Wait = Callable[[Callable[[], Awaitable[Any]]], Any]
"""Runs an awaitable on the client's loop, and waits for its result."""


class Blocking(Generic[A, P, T]):
    """A blocking method: runs the asynchronous one and waits for its result."""

    def __init__(self, method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, face: Face[A], owner: type[Face[A]]) -> Callable[P, T]:
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            found: T = face.wait(lambda: self._method(face.area(), *args, **kwargs))
            return found

        call.__doc__ = self._method.__doc__
        return call


class Face(Generic[A]):
    """Base of the blocking subjects. `area` returns the asynchronous subject of the client that is open
    now."""

    def __init__(self, wait: Wait, area: Callable[[], A]) -> None:
        self.wait = wait
        self.area = area


class BlockingTopics(Face[Topics]):
    """The methods of `Topics`, blocking."""

    names = Blocking(Topics.names)
    route = Blocking(Topics.route)
    clusters = Blocking(Topics.clusters)
    put = Blocking(Topics.put)
    put_all = Blocking(Topics.put_all)
    delete = Blocking(Topics.delete)
    delete_route = Blocking(Topics.delete_route)
    config = Blocking(Topics.config)
    configs = Blocking(Topics.configs)
    system_names = Blocking(Topics.system_names)
    stats_at = Blocking(Topics.stats_at)
    stats = Blocking(Topics.stats)
    groups = Blocking(Topics.groups)


class BlockingGroups(Face[Groups]):
    """The methods of `Groups`, blocking."""

    put = Blocking(Groups.put)
    put_all = Blocking(Groups.put_all)
    delete = Blocking(Groups.delete)
    config = Blocking(Groups.config)
    configs = Blocking(Groups.configs)
    names = Blocking(Groups.names)
    connections = Blocking(Groups.connections)
    running_info = Blocking(Groups.running_info)
    positions = Blocking(Groups.positions)
    set_request_mode = Blocking(Groups.set_request_mode)
    producers = Blocking(Groups.producers)
    all_producers = Blocking(Groups.all_producers)


class BlockingOffsets(Face[Offsets]):
    """The methods of `Offsets`, blocking."""

    lowest = Blocking(Offsets.lowest)
    highest = Blocking(Offsets.highest)
    at_time = Blocking(Offsets.at_time)
    commit = Blocking(Offsets.commit)
    stats_at = Blocking(Offsets.stats_at)
    stats = Blocking(Offsets.stats)
    all_stats = Blocking(Offsets.all_stats)
    reset = Blocking(Offsets.reset)
    changes = Blocking(Offsets.changes)
    reset_offline = Blocking(Offsets.reset_offline)
    clone = Blocking(Offsets.clone)
    brokers_of = Blocking(Offsets.brokers_of)
    address_of = Blocking(Offsets.address_of)
    committed = Blocking(Offsets.committed)


class BlockingMessages(Face[Messages]):
    """The methods of `Messages`, blocking, without `pulls`: call `pull` again at `next_offset`."""

    at_id = Blocking(Messages.at_id)
    by_id = Blocking(Messages.by_id)
    by_key = Blocking(Messages.by_key)
    pull = Blocking(Messages.pull)
    consume_directly = Blocking(Messages.consume_directly)
    track = Blocking(Messages.track)
    redeliver = Blocking(Messages.redeliver)
    put = Blocking(Messages.put)


class BlockingBrokers(Face[Brokers]):
    """The methods of `Brokers`, blocking."""

    cluster = Blocking(Brokers.cluster)
    masters = Blocking(Brokers.masters)
    runtime = Blocking(Brokers.runtime)
    settings = Blocking(Brokers.settings)
    change_settings = Blocking(Brokers.change_settings)
    stats = Blocking(Brokers.stats)
    consume_queue = Blocking(Brokers.consume_queue)
    ha_status = Blocking(Brokers.ha_status)
    epochs = Blocking(Brokers.epochs)
    clean_consume_queues = Blocking(Brokers.clean_consume_queues)
    clean_unused_topics = Blocking(Brokers.clean_unused_topics)
    delete_expired = Blocking(Brokers.delete_expired)
    other = Blocking(Brokers.other)


class BlockingNameServers(Face[NameServers]):
    """The methods of `NameServers`, blocking."""

    settings = Blocking(NameServers.settings)
    change_settings = Blocking(NameServers.change_settings)
    put = Blocking(NameServers.put)
    get = Blocking(NameServers.get)
    delete = Blocking(NameServers.delete)
    put_order = Blocking(NameServers.put_order)
    drop_order = Blocking(NameServers.drop_order)
    all_of = Blocking(NameServers.all_of)
    wipe_write_perm = Blocking(NameServers.wipe_write_perm)
    add_write_perm = Blocking(NameServers.add_write_perm)


class BlockingAccounts(Face[Accounts]):
    """The methods of `Accounts`, blocking."""

    create_user = Blocking(Accounts.create_user)
    update_user = Blocking(Accounts.update_user)
    delete_user = Blocking(Accounts.delete_user)
    user = Blocking(Accounts.user)
    users = Blocking(Accounts.users)
    create_acl = Blocking(Accounts.create_acl)
    update_acl = Blocking(Accounts.update_acl)
    delete_acl = Blocking(Accounts.delete_acl)
    acl = Blocking(Accounts.acl)
    acls = Blocking(Accounts.acls)
    put_account = Blocking(Accounts.put_account)
    delete_account = Blocking(Accounts.delete_account)
    set_white_addresses = Blocking(Accounts.set_white_addresses)
    account_version = Blocking(Accounts.account_version)
    accounts = Blocking(Accounts.accounts)
