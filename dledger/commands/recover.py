"""`dledger recover`: repairs the store of a stopped node when its group can no longer help.

`--reset-term` (`dledger.commands.reset_term`) ends a term that no elections can have made.
`--force-single` continues with one store after the loss of a majority.

`--force-single` is for the case that a majority of a group's stores is lost for good, or all nodes stopped
with failed disks (decision 0009). It works on the store of one stopped node, and makes this node the only
member of a **new cluster**:

1. Derived state that covers entries after the log's end is removed. The next start rebuilds it, and it
   must not be taken for a state of the new cluster's log. Snapshots that name the founders are removed as
   well, if the log reaches back before them. The new members make snapshots of their own there, which name
   the founders of the new cluster.
2. Everything after the durable mark is written again and fsynced: after a failed fsync the page cache may
   hold data that the disk never got (S3).
3. A configuration entry that names only this node, in a term far above all others, is appended.
4. Term and vote, and then the identity (new cluster id, new incarnation) are replaced. Markers that keep
   the node from voting are removed.

If a run is interrupted, the command is run again: each run appends its own entry, and replaces the
identity last. From then on the node refuses members of the old cluster. A node that is to join the new
cluster must begin with an empty store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import msgpack

from dledger.commands.counting import STATE_FILE, Counted, decode_count
from dledger.commands.reset_term import TERM_JUMP, RecoverRefused, reset_term, take_store
from dledger.election.elector import MAX_TERM
from dledger.election.identity import cluster_id
from dledger.files.offline import (
    Found,
    InstallUnfinished,
    StoreUnreadable,
    Walk,
    begins_at,
    durable_mark,
    index_file_size,
    read_checkpoint,
    read_hard_state,
    read_identity,
    segment_starts,
    walk,
)
from dledger.formats.entry import (
    BLANK,
    BLANK_MAGIC,
    HEADER_SIZE,
    INDEX_UNIT_SIZE,
    MAGIC,
    MIN_BLANK_SIZE,
    Kind,
    encode_entry,
    unpack_header,
)
from dledger.formats.record import system_record, system_record_size
from dledger.formats.snapshot import MANIFEST_FILE, decode_manifest
from dledger.formats.state_file import SNAPSHOT_FILE, STATE_DIR, CorruptSnapshot, Snapshot, unpack_snapshot
from dledger.formats.store_files import (
    CHECKPOINT_FILE,
    DATA_DIR,
    IDENTITY_FILE,
    INDEX_DIR,
    MEMBERS_FILE,
    POISONED_FILE,
    POOL_DIR,
    REFILL_FILE,
    SNAPSHOTS_DIR,
    Checkpoint,
    CorruptFile,
    HardState,
    Identity,
    encode_checkpoint,
    encode_json,
    parse_segment_name,
    segment_name,
)
from dledger.log.hard_state import HardStateFile
from dledger.runtime import Env, Files, Lane
from dledger.runtime.atomic_file import publish, read_file
from dledger.runtime.options import Options

_UNFINISHED = "recover.filling"
"""File name of a new segment in the pool of segments while it is being written. A start of the node
removes such a file."""
MARKERS = (POISONED_FILE, REFILL_FILE)
"""Names of files whose presence keeps a node from voting."""


@dataclass(frozen=True)
class Report:
    """What the store contains, and what may be lost."""

    directory: str
    group: str
    node: str
    cluster: str
    first_index: int
    last_index: int
    last_term: int
    committed_hint: int
    """An index that is certainly committed. It was recorded up to a second before the node stopped, so
    later entries may be committed, too."""
    durable_mark: int
    poisoned: str
    """Why the node stopped, if it stopped because its disk failed; otherwise empty."""
    rotten: str
    """Why entries that should be durable cannot be read; empty if all of them can."""
    derived: tuple[str, ...] = ()
    """Files of derived state that contain entries after the log's end, or that cannot be read; they are
    removed."""
    founders: tuple[str, ...] = ()
    """Snapshots that name the old cluster's founding members, and that the log does not need; they are
    removed."""

    def lines(self) -> list[str]:
        """The report as lines for people."""
        uncertain = self.last_index - self.committed_hint
        text = [
            f"store       {self.directory} (node {self.node} of group {self.group}, cluster {self.cluster})",
            f"log         entries {self.first_index}..{self.last_index}, last term {self.last_term}",
            f"committed   at least up to {self.committed_hint}",
            "",
            f"Everything that was acknowledged after entry {self.last_index} (term {self.last_term}) "
            "is lost.",
            "If more than one store survived, use the one with the highest last term, then the highest",
            "last index: run this command without --yes on each of them and compare.",
        ]
        if uncertain > 0:
            text.append(
                f"The last {uncertain} entries may not have been acknowledged; they become committed."
            )
        if self.poisoned:
            text.append(f"The node had stopped: {self.poisoned}")
        if self.rotten:
            text.append(f"DAMAGED: {self.rotten}")
        text += [
            f"{path} is derived state with entries after {self.last_index}, or damaged: it is "
            "removed, and the next start rebuilds it."
            for path in self.derived
        ]
        if self.founders:
            text.append(
                f"{len(self.founders)} snapshots name the founders of the old cluster: they are "
                "removed, because the log begins before them."
            )
        return text


def inspect(files: Files, node_dir: str, written: int | None) -> tuple[Report, Identity, Walk]:
    """Read the whole store. Changes nothing. Blocking. Raises StoreUnreadable or InstallUnfinished.

    `written` is the index up to which the node's last run had written; None if it is not known (decision
    16).
    """
    identity = read_identity(files, node_dir)
    log = walk(files, node_dir, identity.segment_size)
    if log.last_index < 0 and (log.stopped_by or log.begin_pos):
        raise StoreUnreadable(f"{node_dir}: the first entry cannot be read: {log.stopped_by}")
    mark = durable_mark(files, node_dir)
    poison = read_file(files, f"{node_dir}/{POISONED_FILE}")
    committed = read_checkpoint(files, node_dir).committed_index
    known = max(mark, committed)
    if written is not None and poison is None:  # after a failed write the note is worth nothing
        known = max(known, written)
    rotten = ""
    if log.last_index < known:
        why = log.stopped_by or "the log ends before"
        rotten = f"entries {log.last_index + 1}..{known} were stored here and cannot be read ({why})"
    elif behind := _entries_behind(files, node_dir, identity.segment_size, log):
        rotten = f"the log can be read up to entry {log.last_index}, but {behind} after it holds entries"
    report = Report(
        node_dir,
        identity.group,
        identity.node,
        identity.cluster,
        log.first_index,
        log.last_index,
        log.last_term,
        min(committed, log.last_index),
        mark,
        poison.decode(errors="replace") if poison is not None else "",
        rotten,
        tuple(_states_ahead(files, node_dir, log.last_index)),
        tuple(_of_founders(files, node_dir, log)),
    )
    return report, identity, log


async def force_single(env: Env, store: str, *, yes: bool, cut_damage: bool = False) -> Report:
    """Make the store's node the only member of a new cluster. Unless `yes` is set, nothing is changed. If
    `cut_damage` is set, everything from the first damaged entry on is discarded.

    Raises RecoverRefused, StoreUnreadable or OSError.
    """
    run, files = env.workers.run, env.files
    node_dir, lock = await take_store(env, store)
    try:
        written = (await run(Lane.DISK, lock.last_run)).written
        try:
            report, identity, log = await run(Lane.DISK, inspect, files, node_dir, written)
        except InstallUnfinished as error:
            raise RecoverRefused(str(error)) from error
        if not yes:
            return report
        if report.rotten and not cut_damage:
            raise RecoverRefused(
                f"{report.rotten}. Repair them from another store if one is left; with --cut-damage "
                "everything from there on is discarded"
            )
        forced = _Forced(env, node_dir, identity, log, report)
        await run(Lane.DISK, lock.forget_written)
        await forced.apply()
        await run(Lane.DISK, lock.note_boot)
    finally:
        lock.close()
    return report


def _states_ahead(files: Files, node_dir: str, last_index: int) -> Iterator[str]:
    """Yield the files of derived state, in the directory above the node's, that contain entries after
    `last_index` or cannot be read.

    Derived state that covers only a part of the log is not included: it may be the only state that reaches
    back to the beginning of the log.
    """
    store = node_dir.rpartition("/")[0] or "."
    places: tuple[tuple[str, Callable[[bytes], Snapshot | Counted]], ...] = (
        (f"{store}/{STATE_DIR}/{SNAPSHOT_FILE}", unpack_snapshot),
        (f"{store}/{STATE_FILE}", decode_count),
    )
    for path, decode in places:
        data = read_file(files, path)
        if data is None:
            continue
        try:
            ahead = decode(data).applied > last_index
        except (CorruptSnapshot, CorruptFile):
            ahead = True  # no later start may use it
        if ahead:
            yield path


def _of_founders(files: Files, node_dir: str, log: Walk) -> Iterator[str]:
    """Yield the snapshots that are older than the first configuration entry, if the log begins with its
    first entry.

    Such snapshots hold the configuration of the founding members, which is also in the identity. If the
    log begins at a snapshot, nothing is yielded: the configuration is in that snapshot, and the new
    members get it from there.
    """
    directory = f"{node_dir}/{SNAPSHOTS_DIR}"
    if log.last_index < 0 or log.begin_pos > 0 or log.first_index > 0 or not files.is_dir(directory):
        return
    if begins_at(files, node_dir):
        return  # earlier entries are still there, but the next start drops them
    for name in files.listdir(directory):
        path = f"{directory}/{name}"
        if parse_segment_name(name) is None:
            continue
        try:
            index = decode_manifest(read_file(files, f"{path}/{MANIFEST_FILE}") or b"").index
        except (CorruptFile, OSError):
            continue  # the next start removes it
        if log.first_config < 0 or index < log.first_config:
            yield path


def _entries_behind(files: Files, node_dir: str, segment_size: int, log: Walk) -> str:
    """Return the name of a segment after the log's end that begins with an entry; empty if there is none.

    If there is no index and the checkpoint is old, only such a segment shows that the log continued.
    """
    for start in segment_starts(files, node_dir, segment_size):
        if start >= log.end_pos:
            file = files.open(f"{node_dir}/{DATA_DIR}/{segment_name(start)}")
            try:
                data = file.pread(HEADER_SIZE, 0)
            finally:
                file.close()
            if len(data) < HEADER_SIZE:
                continue  # it was being made when a run was cut short
            head = unpack_header(data)
            if head.magic == MAGIC and head.pos == start:
                return segment_name(start)
    return ""


class _Forced:
    """One run of `recover --force-single`. Each durable step is a separate job, and the identity is
    written last."""

    def __init__(self, env: Env, node_dir: str, identity: Identity, log: Walk, report: Report) -> None:
        self._env = env
        self._files = env.files
        self._dir = node_dir
        self._log = log
        self._report = report
        self._committed = -1
        self._size = identity.segment_size
        incarnation = env.ids.uuid()
        members = {identity.node: incarnation}
        self._identity = replace(
            identity, cluster=cluster_id(members), incarnation=incarnation, members=members
        )

    async def apply(self) -> None:
        run, files = self._env.workers.run, self._files
        state = await run(Lane.DISK, read_hard_state, files, self._dir)
        self._committed = (await run(Lane.DISK, read_checkpoint, files, self._dir)).committed_index
        saved = state[1].term if state and state[1].term <= MAX_TERM else 0  # else a stranger's
        term = max(self._log.last_term, saved) + TERM_JUMP
        await self._remove_derived()
        await self._write_again()
        await self._remove_segments_behind()
        config = await self._append_config(term)
        await self._clear_units()
        checkpoint = Checkpoint(config, min(self._committed, self._log.last_index))
        await self._publish(CHECKPOINT_FILE, encode_checkpoint(checkpoint))
        await self._save_term(term)
        for name in (*MARKERS, MEMBERS_FILE):  # the next start looks for configurations in the log
            await run(Lane.DISK, files.unlink, f"{self._dir}/{name}")
        await run(Lane.DISK, files.sync_dir, self._dir)
        await self._publish(IDENTITY_FILE, encode_json(self._identity))

    async def _remove_derived(self) -> None:
        """Remove state that was derived from discarded entries, before the log contains that many entries
        again. Also remove the snapshots that name the founding members."""
        run, files = self._env.workers.run, self._files
        for path in self._report.derived:
            await run(Lane.DISK, files.unlink, path)
            await run(Lane.FLUSH, files.sync_dir, path.rpartition("/")[0])
        for path in self._report.founders:
            await run(Lane.DISK, files.rename, path, f"{path}.tmp")  # a start removes this file
            await run(Lane.FLUSH, files.sync_dir, path.rpartition("/")[0])
            await run(Lane.DISK, files.rmtree, f"{path}.tmp")

    async def _write_again(self) -> None:
        """Write the entries after the durable mark again. Without that, an fsync might not write them,
        because the operating system may take their pages for clean although the disk does not have them."""
        run, files = self._env.workers.run, self._files
        mark = await run(Lane.DISK, durable_mark, files, self._dir)

        written: dict[int, None] = {}

        def write(piece: Found) -> None:
            if piece.headers and piece.headers[-1].index > mark:
                written[piece.start] = None
                file = files.open(self._segment(piece.start))
                try:
                    file.pwritev([piece.data], piece.offset)
                finally:
                    file.close()

        await run(Lane.DISK, walk, files, self._dir, self._size, self._log.last_index, write)
        for start in written:
            await run(Lane.FLUSH, self._sync, self._segment(start))

    async def _remove_segments_behind(self) -> None:
        """Remove the segments after the log's end. They hold discarded entries, and none of these may ever
        count as valid again (S1)."""
        run, files, directory = self._env.workers.run, self._files, f"{self._dir}/{DATA_DIR}"
        starts = await run(Lane.DISK, segment_starts, files, self._dir, self._size)
        for start in reversed(starts):  # the last first: a crash in between must not leave a hole
            if start > self._start_of(self._log.end_pos):
                await run(Lane.DISK, files.unlink, self._segment(start))
                await run(Lane.FLUSH, files.sync_dir, directory)

    async def _append_config(self, term: int) -> int:
        """Append the entry that makes this node the only member; returns its index."""
        run, log = self._env.workers.run, self._log
        body = msgpack.packb({"members": dict(self._identity.members)}, use_bin_type=True)
        size = HEADER_SIZE + system_record_size(len(body))
        pos = log.end_pos
        start = self._start_of(pos)
        if pos - start + size + MIN_BLANK_SIZE > self._size:
            await self._have_segment(start, empty=False)
            blank = BLANK.pack(BLANK_MAGIC, self._size - (pos - start))
            await run(Lane.FLUSH, self._write, self._segment(start), pos - start, blank)
            start = pos = start + self._size
        await self._have_segment(start, empty=pos == start)
        record = system_record(body, pos + HEADER_SIZE, max(self._env.wall.now_ms(), log.newest_ms))  # S15
        index = log.last_index + 1
        entry = encode_entry(index, term, pos, record, log.last_chain, Kind.CONFIG, covered=log.covered)
        # Nothing that could be believed stays behind it (S1).
        behind = bytes(min(HEADER_SIZE, self._size - (pos - start) - len(entry)))
        await run(Lane.FLUSH, self._write, self._segment(start), pos - start, entry + behind)
        return index

    async def _have_segment(self, start: int, *, empty: bool) -> None:
        """Make sure that the segment at `start` has a file of full size, if the segment holds entries or
        is to be `empty`.

        A file of another size in `data` keeps a node from starting, so a new file gets its name only when
        it is complete. An older program that was interrupted may have left a file that is too short; such
        a file counts as missing.
        """
        run, files = self._env.workers.run, self._files
        path, data_dir, pool_dir = self._segment(start), f"{self._dir}/{DATA_DIR}", f"{self._dir}/{POOL_DIR}"
        there = await run(Lane.DISK, files.exists, path)
        if there and await run(Lane.DISK, files.size, path) == self._size:
            return
        if not empty:
            await run(Lane.FLUSH, self._reserve, path)
            return
        await run(Lane.DISK, files.mkdir, data_dir)
        await run(Lane.DISK, files.mkdir, pool_dir)
        unfinished = f"{pool_dir}/{_UNFINISHED}"
        try:
            await run(Lane.FLUSH, self._reserve, unfinished)
        except OSError:
            await run(Lane.DISK, files.unlink, unfinished)  # a full disk is no fuller than before
            raise
        await run(Lane.DISK, files.rename, unfinished, path)
        for directory in (data_dir, pool_dir):
            await run(Lane.FLUSH, files.sync_dir, directory)

    async def _clear_units(self) -> None:
        """Set the index entries after the log's old end to zero; they belong to discarded entries."""
        run, files = self._env.workers.run, self._files
        size = await run(Lane.DISK, index_file_size, files, self._dir)
        if size is None:
            return
        first = (self._log.last_index + 1) * INDEX_UNIT_SIZE
        for name in await run(Lane.DISK, files.listdir, f"{self._dir}/{INDEX_DIR}"):
            start = parse_segment_name(name)
            if start is not None and start + size > first:
                path = f"{self._dir}/{INDEX_DIR}/{name}"
                await run(Lane.FLUSH, self._zero, path, max(first - start, 0))

    async def _save_term(self, term: int) -> None:
        run = self._env.workers.run
        hard_state = await run(Lane.DISK, HardStateFile.open, self._files, self._dir)
        try:
            await run(Lane.FLUSH, hard_state.save, HardState(term, None))
        finally:
            await run(Lane.DISK, hard_state.close)

    async def _publish(self, name: str, data: bytes) -> None:
        await publish(self._files, self._env.workers, Lane.DISK, f"{self._dir}/{name}", data)

    def _start_of(self, pos: int) -> int:
        return pos - pos % self._size

    def _segment(self, start: int) -> str:
        return f"{self._dir}/{DATA_DIR}/{segment_name(start)}"

    def _write(self, path: str, offset: int, data: bytes) -> None:
        file = self._files.open(path)
        try:
            file.pwritev([data], offset)
            file.fdatasync()
        finally:
            file.close()

    def _sync(self, path: str) -> None:
        file = self._files.open(path)
        try:
            file.fdatasync()
        finally:
            file.close()

    def _reserve(self, path: str) -> None:
        """Allocate a file in the size of a segment; its content stays."""
        file = self._files.open(path, create=True)
        try:
            file.allocate(self._size)
            file.fdatasync()
        finally:
            file.close()

    def _zero(self, path: str, begin: int) -> None:
        """Overwrite everything from `begin` on with zeros, and fsync."""
        file = self._files.open(path)
        try:
            size = file.size()
            for at in range(begin, size, 1 << 20):
                data = file.pread(min(1 << 20, size - at), at)
                if any(data):
                    file.pwritev([bytes(len(data))], at)
            file.fdatasync()
        finally:
            file.close()


# The command


async def command(env: Env, args: Options) -> int:
    """Run `recover`; returns 0 if it is done, and 1 if it was refused or not confirmed."""
    if args.reset_term:
        return await _reset_term(env, args)
    try:
        report = await force_single(env, args.store, yes=args.yes, cut_damage=args.cut_damage)
    except (RecoverRefused, StoreUnreadable, OSError) as error:
        print(json.dumps({"done": False, "error": str(error)}) if args.json else f"recover: {error}")
        return 1
    if args.json:
        print(json.dumps({"done": args.yes} | asdict(report)))
        return 0 if args.yes else 1
    print("\n".join(report.lines()))
    if not args.yes:
        print("\nNothing was changed. To make this node the only member of a new cluster, add --yes.")
        return 1
    print(
        f"\nDone: {report.node} is the only member of a new cluster. Start it; then let other members "
        "join, each\nwith an empty store. Members of the old cluster are refused: never start them "
        "with old stores."
    )
    return 0


async def _reset_term(env: Env, args: Options) -> int:
    try:
        report = await reset_term(env, args.store, args.term, yes=args.yes)
    except (RecoverRefused, StoreUnreadable, OSError) as error:
        print(json.dumps({"done": False, "error": str(error)}) if args.json else f"recover: {error}")
        return 1
    if args.json:
        print(json.dumps({"done": args.yes} | asdict(report)))
    else:
        print("\n".join(report.lines(done=args.yes)))
    return 0 if args.yes else 1
