"""Finds the parts of message records in a buffer: many records at once, both versions and all kinds of hosts.
Pure.

The layout is that of `formats.record`, whose decoder reads one record at a time and decides which records are
valid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dledger.audit.entries import Array, Bytes, structs
from dledger.formats.properties import MAX_PROPERTIES_SIZE
from dledger.formats.record import (
    BORN_HOST_V6,
    FIXED_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    MIN_SIZE,
    STORE_HOST_V6,
)

HEAD = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born", ">i8"),
        ("born_host", "V8"),
        ("stored", ">i8"),
        ("store_host", "V8"),
        ("reconsumed", ">i4"),
        ("prepared", ">i8"),
        ("body_size", ">i4"),
    ]
)
"""Layout of the fixed part with IPv4 hosts. Up to `born` it is the same for all records."""
_HOST_V6_MORE = 12
_STORE_TIME_AT = 56
_BODY_SIZE_AT = 84


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Parts of each record. Places are offsets in the buffer. `fits` says which records are well-formed. The
    parts of the others are empty, at the place where the record should begin, and their numbers have no
    meaning."""

    fits: Array
    head: Array
    """Fixed parts of the records, with the fields of `HEAD`."""
    sys_flag: Array
    stored: Array
    body_at: Array
    body_size: Array
    topic_at: Array
    topic_size: Array
    properties_at: Array
    properties_size: Array


def lay_out(buffer: Bytes, starts: Array, sizes: Array) -> Layout:
    """Find the layout of records. They begin at `starts`, have `sizes` bytes, and are within the buffer."""
    fits: Array = sizes >= MIN_SIZE
    if len(buffer) < MIN_SIZE:
        fits[:] = False
    head = _heads(buffer, starts if fits.all() else np.where(fits, starts, 0))
    sys_flag = head["sys_flag"].astype(np.int64)
    stored, body_size = head["stored"].astype(np.int64), head["body_size"].astype(np.int64)
    body_at = starts + FIXED_SIZE
    wide_hosts = np.flatnonzero(fits & (sys_flag & (BORN_HOST_V6 | STORE_HOST_V6) != 0))
    if len(wide_hosts):
        born_more = np.where(sys_flag[wide_hosts] & BORN_HOST_V6, _HOST_V6_MORE, 0)
        more = born_more + np.where(sys_flag[wide_hosts] & STORE_HOST_V6, _HOST_V6_MORE, 0)
        fits[wide_hosts] = sizes[wide_hosts] >= MIN_SIZE + more
        wide_hosts, born_more, more = (some[fits[wide_hosts]] for some in (wide_hosts, born_more, more))
        begin = starts[wide_hosts]
        stored[wide_hosts] = _numbers(buffer, begin + _STORE_TIME_AT + born_more, ">i8")
        body_size[wide_hosts] = _numbers(buffer, begin + _BODY_SIZE_AT + more, ">i4")
        body_at[wide_hosts] += more
    magic = head["magic"].astype(np.int64)
    long_topic = magic == MAGIC_V2
    ends = starts + sizes
    topic_at = body_at + body_size + 1 + long_topic
    fits &= (long_topic | (magic == MAGIC_V1)) & (head["size"] == sizes)
    fits &= (body_size >= 0) & (topic_at + 2 <= ends)
    topic_size = _octets(buffer, topic_at - 1, fits)
    if long_topic.any():
        topic_size += _octets(buffer, topic_at - 2, fits & long_topic) << 8
    properties_at = topic_at + topic_size + 2
    fits &= properties_at <= ends
    properties_size = _octets(buffer, properties_at - 2, fits) << 8
    properties_size += _octets(buffer, properties_at - 1, fits)
    fits &= (properties_at + properties_size == ends) & (properties_size <= MAX_PROPERTIES_SIZE)
    if not fits.all():
        lost = ~fits
        for at, size in ((body_at, body_size), (topic_at, topic_size), (properties_at, properties_size)):
            at[lost], size[lost] = starts[lost], 0
    return Layout(
        fits,
        head,
        sys_flag,
        stored,
        body_at,
        body_size,
        topic_at,
        topic_size,
        properties_at,
        properties_size,
    )


def _heads(buffer: Bytes, starts: Array) -> Array:
    """Read the fixed part of each record. It is zeros if the buffer is too short for one."""
    return np.zeros(len(starts), HEAD) if len(buffer) < FIXED_SIZE else structs(buffer, starts, HEAD)


def _octets(buffer: Bytes, places: Array, which: Array) -> Array:
    """Read the byte at each place. It is 0 for places that are not in `which`."""
    if which.all():
        return buffer[places].astype(np.int64)
    found = np.zeros(len(places), np.int64)
    found[which] = buffer[places[which]]
    return found


def _numbers(buffer: Bytes, starts: Array, kind: str) -> Array:
    """Read one big-endian number at each start."""
    found: Array = structs(buffer, starts, np.dtype([("n", kind)]))["n"].astype(np.int64)
    return found
