"""The log store against a list, on the simulated disk: append, cut, kill, power cut, rot, reopen.

A kill may fall between two effects or within a write.

The model knows every entry in order, and how many of them were acknowledged as durable. After a crash the
store must hold a prefix of the list, at least as long as what was acknowledged, ending at the end of a client
batch; entries, terms, positions, chain and index units must be those of the list. After a cut that was
acknowledged, what was cut never comes back. An entry that rots at rest (a flipped bit below the durable mark)
is never served and never cut, whatever crashes beside it, and the log is as it was when the bit is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from zlib import crc32

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dledger.chaos.machine import Settings, World
from dledger.chaos.machine.node import Process
from dledger.chaos.scenarios.disks import StoreOnDisk
from dledger.formats.entry import HEADER_SIZE, Kind, chain_crc, crc_begin, unpack_header
from dledger.log.appender import Appender
from dledger.log.incoming import check_run
from dledger.log.reading import Rotten
from dledger.log.recovery import Recovered, StoreDamaged
from dledger.log.store import LogStore
from dledger.runtime.env import Env

SEGMENT = 16 * 1024
UNITS = 64
DIRECTORY = "/store/dledger-n0"
OPEN_LIMIT_S = 30.0
LARGE = 3000
"""Bytes; a write of as many is more than a page, and may be killed in the middle."""
SIM = Settings()

MODES = ("prefix", "torn", "none", "all")
"""What a loss of power leaves of unsynced writes."""

Step = tuple[str, int, bool]
APPEND, PUSH, CUT, WAIT, PASS, KILL, TEAR, POWER, ARM, CLOSE, ROT = (
    "append", "push", "cut", "wait", "pass", "kill", "tear", "power", "arm", "close", "rot",
)  # fmt: skip


@dataclass(frozen=True)
class Item:
    """One entry as the model knows it."""

    term: int
    body: bytes
    remaining: int


class Model:
    """A machine with one store, and the list that it must equal."""

    def __init__(self, seed: int, sync: bool) -> None:
        self.world = World(seed, settings=SIM)
        self.world.node("n0")
        self.sync = sync
        self.items: list[Item] = []
        self.acknowledged = 0
        """Entries that must be there whatever happens."""
        self.term = 1
        self.log: LogStore | None = None
        self.found: Recovered | None = None
        self.error: Exception | None = None
        self.reopened = 0
        self._power_lost = False
        self._closing = False
        self._commands: asyncio.Queue[int] = asyncio.Queue()
        self._cuts_done = 0
        self._bodies = 0
        self._reads: list[asyncio.Task[None]] = []

    # The process

    @property
    def process(self) -> Process | None:
        return self.world.nodes["n0"].process

    async def _main(self, env: Env) -> None:
        log = LogStore(
            env, DIRECTORY, segment_size=SEGMENT, index_units_per_file=UNITS, pool_segments=1,
            sync_flush=self.sync,
        )  # fmt: skip
        self._commands = asyncio.Queue()
        try:
            self.found = await log.open(power_lost=self._power_lost, discard_above_mark=False)
        except StoreDamaged as error:
            self.error = error
            return
        self._power_lost = False
        self.log = log
        tasks = [asyncio.ensure_future(work) for work in (log.run_flusher(), log.run_pool())]
        while True:
            index = await self._commands.get()
            if index < 0:
                break
            await log.truncate(index)
            self._cuts_done += 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await log.close()

    def open(self) -> bool:
        """Start the process and open the store; False when it crashed on the way."""
        self.log = None
        process = self.world.restart("n0", self._main)
        self.world.run_until(lambda: self.log is not None or process.exit is not None, OPEN_LIMIT_S)
        return self.log is not None and self.process is not None

    def reopen(self) -> None:
        """After a crash: open, however often it takes, and compare with the list."""
        while not self.open():
            if self.error is not None:
                raise self.error
            self._note_crash()
        self.reopened += 1
        self._adopt()
        self.compare()

    def _adopt(self) -> None:
        """What is there now is what counts: it is durable (S2)."""
        assert self.log is not None
        count = self.log.last_index + 1
        assert self.acknowledged <= count <= len(self.items), (
            f"{self.acknowledged} entries were acknowledged of {len(self.items)}; {count} are there"
        )
        assert count == 0 or self.items[count - 1].remaining == 0, "a client batch is cut in two"
        self.items = self.items[:count]
        self.acknowledged = count
        assert self.log.durable_index == self.log.last_index

    def _note_crash(self) -> None:
        if not self.world.nodes["n0"].powered:
            self._power_lost = True
            self._check_units()

    def _check_units(self) -> None:
        """Who has an index unit after a loss of power is there itself (S4), else it would pass for rot."""
        disk = StoreOnDisk(self.world.nodes["n0"].disk, DIRECTORY, SEGMENT)
        for unit in disk.durable_units(0, len(self.items) - 1):
            item = self.items[unit.index]
            if (item.term, HEADER_SIZE + len(item.body)) == (unit.term, unit.size):  # else of a cut one
                data = disk.read(unit.pos, unit.size, durable=True)
                assert data[HEADER_SIZE:] == item.body, f"{unit} is durable, the entry is not"

    def _crashed(self) -> bool:
        """Whether the process is gone; then it is opened again."""
        if self.process is not None:
            return False
        self._note_crash()
        self.reopen()
        return True

    # Steps

    def step(self, step: Step) -> None:
        """One operation; a crash that was armed may fall into it."""
        kind, number, flag = step
        if self.process is None:
            self._crashed()
        if kind in (APPEND, PUSH):
            self._append(number, flag, pushed=kind == PUSH)
        elif kind == CUT:
            self._cut(number)
        elif kind == WAIT:
            self._run_until(lambda: self._durable() == len(self.items))
        elif kind == PASS:
            self.world.run_for(number * 0.0001)
        elif kind == KILL:
            self.world.kill("n0")
        elif kind == TEAR and self.process is not None:
            if flag:
                self._fill()
            if self.process is not None:
                self.world.kill_in_write("n0", "/data/")
        elif kind == POWER:
            self.world.power_cut("n0", mode=MODES[number % len(MODES)])
        elif kind == ARM and self.process is not None:
            effect, mode = divmod(number, len(MODES))
            self.world.crash_before("n0", effect + 1, power=flag, mode=MODES[mode])
        elif kind == CLOSE:
            self._close()
        elif kind == ROT:
            self._rot(number, flag)
        self._note_durable()
        self._crashed()

    def _run_until(self, done: Callable[[], bool]) -> None:
        self.world.run_until(lambda: self._note_durable() or self.process is None or done(), OPEN_LIMIT_S)

    def _durable(self) -> int:
        """Entries that the store says are durable."""
        assert self.log is not None
        return (self.log.durable_index if self.sync else self.log._synced_index) + 1

    def _note_durable(self) -> bool:
        if self.log is not None and self.process is not None:
            self.acknowledged = max(self.acknowledged, min(self._durable(), len(self.items)))
        return False

    def _append(self, number: int, batch: bool, *, pushed: bool) -> None:
        log, process = self.log, self.process
        assert log is not None and process is not None
        count = 1 + number % 7
        bodies = []
        for _ in range(count):
            self._bodies += 1
            size = (number * 37 + self._bodies * 101) % (1500 if number % 3 else 60)
            bodies.append(b"%d." % self._bodies + bytes([self._bodies % 251]) * size)
        done: list[bool] = []

        def seal() -> None:
            appender = Appender(
                log, self.term, pending_bytes=1 << 30, pending_entries=1 << 30, schedule_pump=lambda: None
            )
            if batch:
                appender.reserve(sum(HEADER_SIZE + len(body) for body in bodies))
            for place, body in enumerate(bodies):
                if not batch:
                    appender.reserve(HEADER_SIZE + len(body))
                remaining = count - 1 - place if batch else 0
                self.items.append(Item(self.term, body, remaining))
                appender.add((body,), len(body), Kind.MESSAGE, remaining)
            for sealed in appender.take():
                if pushed:  # as a follower gets it
                    last_term = max(log.last_term, 0)
                    data = bytes(sealed.data)
                    run = check_run(
                        data, sealed.first, sealed.last, sealed.pos, last_term, self.term, log.last_chain
                    )
                    for part in run.batches(sealed.first):
                        log.append(part)
                else:
                    log.append(sealed)
            done.append(True)

        process.loop.call_soon(seal)
        self._run_until(lambda: bool(done))

    def _fill(self) -> None:
        """Entries until a large write begins the next segment."""
        while self.log is not None and self.process is not None:
            if SEGMENT - self.log.end_pos % SEGMENT < LARGE:
                break
            self._append(7, False, pushed=False)
        self.step((WAIT, 0, False))

    def _cut(self, number: int) -> None:
        if not self.items:
            return
        index = number % len(self.items)
        while index and self.items[index - 1].remaining:
            index -= 1  # Raft cuts where the leader's log differs: at the beginning of a batch
        self.acknowledged = min(self.acknowledged, index)
        before = self._cuts_done
        process = self.process
        assert process is not None
        process.loop.call_soon(self._commands.put_nowait, index)
        self.world.run_until(lambda: self._cuts_done > before or self.process is None, OPEN_LIMIT_S)
        if self._cuts_done > before:
            del self.items[index:]
            self.term += 1
            self._note_durable()

    def _close(self) -> None:
        process = self.process
        assert process is not None
        process.loop.call_soon(self._commands.put_nowait, -1)
        self.world.run_until(lambda: self.process is None, OPEN_LIMIT_S)
        if process.exit is not None and process.exit.reason == "returned":
            self.acknowledged = max(self.acknowledged, min(self._durable(), len(self.items)))

    def _rot(self, number: int, closed: bool) -> None:
        """A bit of a durable entry flips while the store is closed (or was killed); opened, it is looked at;
        then the bit is as it was (a repair in place is tested elsewhere)."""
        if closed:
            self._close()
        if self.process is not None:
            self.world.kill("n0")
        self._note_crash()
        disk = StoreOnDisk(self.world.nodes["n0"].disk, DIRECTORY, SEGMENT)
        items = enumerate(self.items[: self.acknowledged])
        whole = {index: (item.term, HEADER_SIZE + len(item.body)) for index, item in items}
        units = [
            unit
            for unit in disk.durable_units(0, self.acknowledged - 1)
            if whole[unit.index] == (unit.term, unit.size)
        ]
        if not units:
            return
        unit = units[number % len(units)]
        good = disk.read(unit.pos, unit.size, durable=True)
        start = unit.pos - unit.pos % SEGMENT
        path, offset = f"{DIRECTORY}/data/{start:020d}", unit.pos - start + number * 7 % unit.size
        inode = self.world.nodes["n0"].disk.inode(path)
        if good != inode.content[unit.pos - start : unit.pos - start + unit.size]:
            return  # it is written once more, by a start that was killed
        was = inode.durable[offset]
        flip(self, path, offset, number % 8)
        while not self.open():
            if self.error is not None:
                raise self.error
            self._note_crash()
        self._note_durable()
        log = self.log
        assert log is not None
        assert self.acknowledged <= log.last_index + 1 <= len(self.items), "rot costs no entry its place"
        self.items = self.items[: log.last_index + 1]
        self.acknowledged = len(self.items)
        self.compare({unit.index: good})
        for index in range(len(self.items)):
            self._read(index, unit.index)
        for content in (inode.content, inode.durable):
            content[offset] = was
        self.world.kill("n0")

    def _read(self, index: int, flipped: int) -> None:
        """What a peer would be sent is what was written, or is refused: for the entry with the flipped bit,
        or one beside it (a broken chain does not say on which side)."""
        log, process = self.log, self.process
        assert log is not None and process is not None
        found: list[bytes | Rotten] = []

        async def read() -> None:
            try:
                found.append((await log.read_range(index, index))[0])
            except Rotten as rotten:
                found.append(rotten)

        process.loop.call_soon(lambda: self._reads.append(process.loop.create_task(read())))
        self.world.run_until(lambda: bool(found), OPEN_LIMIT_S)
        [data] = found
        if isinstance(data, Rotten):
            assert data.first - 1 <= flipped <= data.last + 1, data
        else:
            assert data[HEADER_SIZE : HEADER_SIZE + len(self.items[index].body)] == self.items[index].body

    # The comparison

    def compare(self, rotten: Mapping[int, bytes] | None = None) -> None:
        """Every entry, header and unit, the terms and the end. `rotten`: what was written there."""
        log = self.log
        assert log is not None
        chain, pos, term = 0, 0, -1
        for index, item in enumerate(self.items):
            at, size = log.locate(index)
            data = bytes((rotten or {}).get(index) or log.view(at, size) or log._segments.pread(at, size))
            header = unpack_header(data)
            assert at == pos or (at % SEGMENT == 0 and pos < at <= pos + SEGMENT), f"entry {index} at {at}"
            assert (header.index, header.term, header.pos) == (index, item.term, at)
            assert header.batch_remaining == item.remaining
            assert data[HEADER_SIZE:] == item.body and header.body_crc == crc32(
                item.body, crc_begin(header.channel)
            )
            chain = chain_crc(chain, index, item.term, header.body_crc)
            assert header.chain_crc == chain
            assert log.term_of(index) == item.term
            unit = log._index.unit(index)
            if unit is not None:
                assert (unit.pos, unit.size, unit.term) == (at, size, item.term)
            if item.term != term:
                assert log.last_of_term_at_most(item.term - 1, index) == index - 1
            pos, term = at + size, item.term
        assert log.last_term == term
        assert log.last_chain == chain
        assert log.end_pos == pos
        assert log.term_of(len(self.items)) is None

    def finish(self) -> None:
        """Nothing is lost when the power goes after everything was acknowledged, twice in a row."""
        if self.process is None:
            self._crashed()
        for _ in range(2):
            self.step((WAIT, 0, False))
            self.step((POWER, 0, False))
        self.compare()
        self.world.check()


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([APPEND, APPEND, PUSH]), st.integers(0, 400), st.booleans()),
        st.tuples(st.sampled_from([WAIT, PASS, CUT]), st.integers(0, 60), st.booleans()),
        st.tuples(st.sampled_from([KILL, TEAR, POWER, CLOSE]), st.integers(0, 3), st.booleans()),
        st.tuples(st.just(ARM), st.integers(0, 120), st.booleans()),
        st.tuples(st.just(ROT), st.integers(0, 10_000), st.booleans()),
    ),
    max_size=40,
)
MODEL = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def play(seed: int, sync: bool, todo: list[Step]) -> Model:
    model = Model(seed, sync)
    with model.world:
        model.reopen()
        for step in todo:
            model.step(step)
        model.finish()
    return model


CUT_KILLED_BEFORE_ITS_FSYNC: list[Step] = [
    (PASS, 16, False),
    (APPEND, 0, False),
    (ARM, 36, False),
    (CUT, 0, False),
]


@MODEL
@example(0, CUT_KILLED_BEFORE_ITS_FSYNC)
@given(st.integers(0, 10_000), steps)
def test_what_was_acknowledged_is_there_and_nothing_is_invented(seed: int, todo: list[Step]) -> None:
    play(seed, True, todo)


@MODEL
@given(st.integers(0, 10_000), steps)
def test_the_same_when_fsyncs_come_later(seed: int, todo: list[Step]) -> None:
    """ASYNC_FLUSH: what the store says is fsynced."""
    play(seed, False, todo)


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_before_each_effect_of_a_cut_and_of_what_follows(power: bool) -> None:
    """Do the same work again and again, stopped later each time, until it ends without a crash."""
    for effect in range(int(power), 60, 2):
        model = Model(effect, True)
        with model.world:
            model.reopen()
            for number in range(25):
                model.step((APPEND, number * 17, number % 4 == 0))
            model.step((WAIT, 0, False))
            model.step((ARM, effect, power))
            model.step((CUT, 20, False))
            model.step((APPEND, 5, False))
            model.step((WAIT, 0, False))
            model.finish()


def test_a_batch_at_the_start_of_a_segment_that_a_kill_tears_undoes_the_roll() -> None:
    """The log ends where its last entry ends, whether the first entry of the batch is whole or not: else it
    would go on in the new segment, and a peer that kept as much in the old one."""
    cuts = []
    for seed in range(24):
        model = Model(seed, True)
        with model.world:
            model.reopen()
            model.step((TEAR, 0, True))
            kept, ends = len(model.items), model.log.end_pos  # type: ignore[union-attr]
            model.step((APPEND, 13, True))  # of seven
            model.world.run_for(1.0)
            model.step((WAIT, 0, False))
            if len(model.items) == kept and model.found is not None and model.found.cut:
                cuts.append(model.found.cut.split(" ", 1)[0])
                assert model.found.end_pos == ends and model.found.last_index == kept - 1
            model.finish()
    assert "client" in cuts and "body" in cuts, cuts


# Rot. What the store does about it is decided elsewhere; here only: it is never silent.


def flip(model: Model, path: str, offset: int, bit: int) -> None:
    """A bit of a file at rest, in the page cache and on the medium."""
    inode = model.world.nodes["n0"].disk.inode(path)
    for content in (inode.content, inode.durable):
        content[offset] ^= 1 << bit


def reported(model: Model, index: int) -> bool:
    """Whether the store refused to open, or says that it cannot serve the entry."""
    if model.error is not None:
        return True
    faulty = getattr(model.found, "faulty", None) or getattr(model.log, "faulty", None)
    if not faulty:
        return False
    return index in faulty or any(isinstance(run, tuple) and run[0] <= index <= run[-1] for run in faulty)


def filled(seed: int, count: int = 12) -> Model:
    """A closed store with some segments."""
    model = Model(seed, True)
    model.reopen()
    for number in range(count):
        model.step((APPEND, number * 29, number % 3 == 0))
    model.step((WAIT, 0, False))
    process = model.process
    assert process is not None
    process.loop.call_soon(model._commands.put_nowait, -1)
    model.world.run_until(lambda: process.exit is not None, OPEN_LIMIT_S)
    return model


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 10_000), st.integers(0, 100_000), st.integers(0, 7))
def test_a_flipped_bit_below_the_durable_mark_is_never_served_and_never_cut(
    seed: int, which: int, where: int, bit: int
) -> None:
    model = filled(seed)
    with model.world:
        index = which % len(model.items)
        size = HEADER_SIZE + len(model.items[index].body)
        positions = _positions(model)
        offset = where % size
        start = positions[index] - positions[index] % SEGMENT
        flip(model, f"{DIRECTORY}/data/{start:020d}", positions[index] - start + offset, bit)
        model.open()
        if reported(model, index):
            return
        # It was not read at the start (recovery begins at the segment of the durable mark): the entry is
        # there, nothing is cut, and its CRC tells.
        assert model.log is not None and model.log.last_index == len(model.items) - 1
        at, length = model.log.locate(index)
        data = model.log._segments.pread(at, length)
        header = unpack_header(data)
        computed = crc32(data[HEADER_SIZE:], crc_begin(header.channel))
        assert data[HEADER_SIZE:] == model.items[index].body or computed != header.body_crc


def _positions(model: Model) -> list[int]:
    """Where the entries lie, by the rule of the segments: an entry that does not fit begins the next one."""
    positions = []
    pos = 0
    index = 0
    while index < len(model.items):
        batch = model.items[index : index + model.items[index].remaining + 1]
        size = sum(HEADER_SIZE + len(item.body) for item in batch)
        if pos % SEGMENT + size + 8 > SEGMENT:
            pos += SEGMENT - pos % SEGMENT
        for item in batch:
            positions.append(pos)
            pos += HEADER_SIZE + len(item.body)
        index += len(batch)
    return positions


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 10_000), st.integers(0, 100_000), st.integers(0, 7))
def test_damage_behind_the_last_acknowledged_entry_costs_nothing_else(
    seed: int, size: int, where: int, bit: int
) -> None:
    """Entries that were written and never acknowledged, torn by a power cut."""
    model = filled(seed)
    with model.world:
        model.reopen()
        kept = len(model.items)
        model.step((APPEND, size % 400, False))
        positions = _positions(model)
        start = positions[kept] - positions[kept] % SEGMENT
        model.world.power_cut("n0")
        path = f"{DIRECTORY}/data/{start:020d}"
        if model.acknowledged == kept and model.world.nodes["n0"].disk.find(path) is not None:
            offset = positions[kept] - start + where % (HEADER_SIZE + len(model.items[kept].body))
            flip(model, path, offset, bit)
        model._note_crash()
        model.open()
        assert model.error is None, model.error
        assert model.log is not None and kept <= model.log.last_index + 1 <= len(model.items)
        model.items = model.items[: model.log.last_index + 1]
        if model.log.last_index + 1 == kept:
            model.compare()


@pytest.mark.parametrize("seed", range(8))
def test_no_unit_outlives_its_entry_when_power_fails_in_a_burst(seed: int) -> None:
    """ASYNC_FLUSH: groups are written one after another, and fsynced later."""
    for effect in range(1, 11):
        model = Model(seed, False)
        with model.world:
            model.reopen()
            model.step((APPEND, 3, False))
            model.step((WAIT, 0, False))
            model.world.run_for(0.002)
            model.step((ARM, (effect - 1) * len(MODES) + MODES.index("torn"), True))
            for number in range(12):
                model.step((APPEND, number * 17, False))
            model.finish()
