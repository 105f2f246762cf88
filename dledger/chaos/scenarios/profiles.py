"""Profiles: named mixes of faults. The number of a seed chooses its profile, so that each profile gets its
share of the seeds."""

from __future__ import annotations

from dataclasses import dataclass

ANY = ("any", "leader", "follower")
LEADERS = ("leader", "leader", "any")
EITHER = (3, 5)


@dataclass(frozen=True)
class Draw:
    """One kind of fault in a mix, with its weight, its possible targets, and the bounds of its duration and
    its amount."""

    kind: str
    weight: int = 1
    targets: tuple[str, ...] = ANY
    lasting_ms: tuple[int, int] = (50, 5_000)
    amount: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Profile:
    """A mix of faults, and the coverage marks that a run over many of its seeds must have reached."""

    faults: tuple[Draw, ...]
    also: tuple[Draw, ...] = ()
    """Additional faults, of which a seed has one or two.

    They are chosen last and with a random stream of their own. So a fault that is added to a profile later
    adds to the plans of its seeds, and changes nothing else in them.
    """
    nodes: tuple[int, ...] = (3,)
    """Possible sizes of the group. Each seed chooses one of them."""
    spares: int = 0
    """Number of further machines, for members that are added while the group runs."""
    operations: int = 330
    bursts: tuple[int, int] = (0, 0)
    """Smallest and largest number of appends in a large burst. With (0, 0) a seed has only the small bursts
    that all profiles have."""
    pending: int = 200_000
    """Largest number of uncommitted entries of a leader; further appends are refused."""
    max_entry: int = 16 * 1024
    """Size, in bytes, of the largest entry. In profiles with more than the default, some appends have exactly
    this size, and some are one byte larger."""
    marks: tuple[str, ...] = ()
    segment: int = 64 * 1024
    """Size of a segment in bytes."""
    reserved_s: float | None = None
    """Age, in seconds, at which segments are removed. None keeps them all. If it is shorter than an outage, a
    node that was down needs an install."""
    snapshots: int = 8
    """How many snapshots are kept, in profiles in which segments are removed."""
    ballast: int = 0
    """How many bytes a snapshot has in addition to the state."""
    dawdling: bool = False
    """Whether the host takes some time to restore a snapshot, and to react to a later beginning of the log.
    """
    sync_flush: bool = True
    """False means ASYNC_FLUSH. A power cut then loses acknowledged entries, so the atlas counts it as damage.
    """
    lease_reads: bool = False
    """Whether the leader may answer reads by its lease (S17). Then clocks drift within the margin only, and
    every second operation that would append a value asks for a read point instead."""
    versions: bool = False
    """Whether a node chooses its highest peer protocol anew at each start. So nodes are upgraded and
    downgraded during the run."""
    upgrades: bool = False
    """Whether a broker chooses at each start between the present and the newer program (`newer`). Once an
    operation was written that the older program does not know, every start uses the newer program."""
    brokers: bool = False
    """Whether whole brokers run, with a NameServer, producers and consumers, instead of bare nodes."""
    deletes: bool = False
    """Whether there is a client that creates topics and deletes them."""
    orderly: bool = False
    """Whether there are four more consumers. Two share a group of orderly consumers, and are replaced again
    and again. Two share a group that pops in order."""
    unaware: bool = False
    """Whether there is a consumer that does not notice lost connections, like consumers of other projects."""
    spread_chance: float = 0.0
    """Probability that a job of a worker does not run in one piece. Each such job costs a thread."""


KILL = Draw("kill", targets=LEADERS)
KILL_ALL = Draw("kill-all", lasting_ms=(20, 3_000))
CRASH = Draw("crash", targets=ANY, amount=(1, 60))
POWER = Draw("power", targets=ANY)
POWER_CRASH = Draw("power-crash", targets=ANY, amount=(1, 60))
POWER_ALL = Draw("power-all", lasting_ms=(20, 3_000), amount=(0, 60))
RESTARTS = Draw("restarts", targets=ANY, lasting_ms=(10, 400), amount=(2, 6))
TERMINATE = Draw("terminate", targets=ANY)
TRANSFER = Draw("transfer", targets=("leader",))
STOP = Draw("stop", targets=LEADERS, lasting_ms=(50, 10_000))
STALL = Draw("stall", targets=LEADERS, lasting_ms=(50, 2_000), amount=(1, 60))
SLOW = Draw("slow", targets=ANY, lasting_ms=(500, 8_000), amount=(5, 60))
CLOCK_JUMP = Draw("clock-jump", targets=ANY, amount=(10, 86_400_000))
CLOCK_STILL = Draw("clock-still", 1, LEADERS, (100, 12_000))
CLOCK_DRIFT = Draw("clock-drift", targets=ANY, lasting_ms=(2_000, 20_000), amount=(1, 50))
DRIFT_IN_MARGIN = Draw("clock-drift", 3, ANY, (2_000, 20_000), (1, 5))
DISK_SLOW = Draw("disk-slow", targets=ANY, lasting_ms=(500, 8_000), amount=(5, 200))
DISK_SLOWER = Draw("disk-slow", targets=ANY, lasting_ms=(2_000, 15_000), amount=(200, 1_000))
DISK_HANG = Draw("disk-hang", targets=ANY, lasting_ms=(20, 400))
EIO_WRITE = Draw("eio-write", targets=ANY, lasting_ms=(1_000, 4_000), amount=(1, 3))
EIO_FSYNC = Draw("eio-fsync", targets=ANY, lasting_ms=(1_000, 4_000), amount=(1, 3))
EIO_READ = Draw("eio-read", targets=ANY, lasting_ms=(1_000, 6_000), amount=(1, 24))
EIO_SNAPSHOT = Draw("eio-snapshot", targets=ANY, lasting_ms=(1_000, 6_000), amount=(1, 8))
WIPE = Draw("wipe", targets=ANY, lasting_ms=(50, 4_000))
DISK_STALL = Draw("disk-hang", targets=LEADERS, lasting_ms=(500, 8_000))
SHORT_MEMORY = Draw("short-memory", targets=ANY, lasting_ms=(1_000, 15_000), amount=(5, 50))
DISK_ROOM = Draw("disk-room", targets=ANY, lasting_ms=(2_000, 10_000), amount=(0, 100_000))
ROT = Draw("rot", targets=ANY, lasting_ms=(50, 3_000), amount=(0, 1 << 16))
ROT_INDEX = Draw("rot-index", 2, lasting_ms=(50, 3_000), amount=(0, 1 << 16))
ROT_VOTES = Draw("rot-votes", 2, lasting_ms=(50, 3_000), amount=(0, 1 << 16))
ROT_CHECKPOINT = Draw("rot-checkpoint", targets=ANY, lasting_ms=(50, 3_000), amount=(0, 1 << 16))
LOSE_VOTES = Draw("lose-votes", lasting_ms=(50, 3_000))
MISDIRECT_VOTES = Draw("misdirect-votes", 1, ("follower",), (2_000, 6_000))
MISDIRECT = Draw("misdirect", 6, lasting_ms=(2_000, 6_000))
LOSE_MEMBERS = Draw("lose-members", 2, lasting_ms=(50, 3_000))
LOSE_SEGMENT = Draw("lose-segment", targets=ANY, lasting_ms=(50, 3_000))
INSTALL_CRASH = Draw("install-crash", 2, lasting_ms=(100, 3_000), amount=(1, 40))
SAVE_CRASH = Draw("save-crash", lasting_ms=(50, 3_000))
KILL_IN_WRITE = Draw("kill-in-write", lasting_ms=(20, 3_000))
SNAPSHOT_CRASH = Draw("snapshot-crash", lasting_ms=(50, 3_000), amount=(1, 12))
CHANGE_CRASH = Draw("change-crash", lasting_ms=(50, 3_000), amount=(1, 16))
CUT_CRASH = Draw("cut-crash", 2, lasting_ms=(50, 3_000), amount=(1, 6))
RETIRE = Draw("retire", 3)
OUTAGE = Draw("kill", 3, lasting_ms=(3_000, 20_000))
GROW = Draw("grow", weight=3)
SHRINK = Draw("shrink", weight=2)
REJOIN = Draw("rejoin", lasting_ms=(500, 8_000), amount=(1, 1_000))
PREFER = Draw("prefer")
CUT = Draw("cut", targets=ANY, lasting_ms=(100, 6_000))
ONE_WAY = Draw("one-way", targets=ANY, lasting_ms=(100, 6_000))
ISOLATE = Draw("isolate", targets=LEADERS, lasting_ms=(100, 8_000))
ORPHAN = Draw("orphan", 3, LEADERS, (300, 4_000))
DEAF = Draw("deaf", targets=LEADERS, lasting_ms=(100, 8_000))
MUTE = Draw("mute", targets=LEADERS, lasting_ms=(100, 8_000))
RING = Draw("ring", lasting_ms=(500, 8_000))
BRIDGE = Draw("bridge", lasting_ms=(500, 8_000))
CHURN = Draw("churn", lasting_ms=(2_000, 10_000), amount=(200, 1_500))
DELAY = Draw("delay", targets=ANY, lasting_ms=(500, 8_000), amount=(2, 200))
LOSS = Draw("loss", targets=ANY, lasting_ms=(500, 8_000), amount=(5, 60))
NARROW = Draw("narrow", targets=ANY, lasting_ms=(500, 8_000), amount=(2_000, 100_000))
SILENCE = Draw("silence", targets=ANY, lasting_ms=(100, 8_000))
RESET = Draw("reset", targets=ANY)
HALF_OPEN = Draw("half-open", targets=ANY)
STRAND = Draw("strand", targets=ANY)
GARBAGE = Draw("garbage", targets=ANY, lasting_ms=(10, 5_000))
CROWD = Draw("crowd", targets=ANY, lasting_ms=(10, 5_000), amount=(10, 120))
CROWDS = Draw("crowd", targets=ANY, lasting_ms=(10, 5_000), amount=(1_000, 5_000))
CLIENTS_CUT = Draw("clients-cut", targets=LEADERS, lasting_ms=(100, 4_000))

NAMESRV_KILL = Draw("namesrv-kill", lasting_ms=(50, 6_000))
NAMESRV_POWER = Draw("namesrv-power", lasting_ms=(50, 6_000))
NAMESRV_CUT = Draw("namesrv-cut", 2, LEADERS, (100, 8_000))
NAMESRV_STOP = Draw("namesrv-stop", 2, lasting_ms=(100, 8_000))
NAMESRV_LEADER = Draw("namesrv-leader", 2, ("leader",), (200, 6_000))
EIO_DERIVED = Draw("eio-derived", 2, lasting_ms=(1_000, 6_000), amount=(1, 3))
ROLL_KILL = Draw("roll-kill", lasting_ms=(50, 4_000))
BATCH_CRASH = Draw("batch-crash", 6, lasting_ms=(50, 3_000), amount=(1, 4))
CLIENT_KILL = Draw("client-kill", 2, lasting_ms=(20, 4_000))

OLD_LEADS = "a new leader while the old one still leads"
RECOVERED = "an append of unknown outcome is in the log"
NOWHERE = "an append of unknown outcome is nowhere"
NOT_DURABLE = "end with entries not yet durable"
OLDER_TERM = "entries of an older term committed by a newer one"
TRUNCATED = "follower truncated"
TAIL = "leader ended with an uncommitted tail"
NO_CONTACT = "leader stepped down without contact to a quorum"
ALL_DARK = "no node has power"
ADMITTED = "node promoted"
BY_ITS_DISK = "node ended by its disk"
STICKY = "pre-vote refused by stickiness"
ROLLED = "segment rolled while a node is down"
ADDED, REMOVED, REPLACED = "member added", "member removed", "lost store replaced by a new one"
CAME_BACK = "a member left and came back"
STALLED, FULL, FAULTY = "a disk stalls", "a disk is full", "entries are faulty"
REPAIRED, REFUSED = "entries repaired by a peer", "an append refused for good reason"
TOLD_TO_STAND = "stood because the leader said so"
REFILLED = "store refilled"
TORN = "torn tail recovered"
VOTES_LOST = "term and vote lost"
IN_DOUBT = "members in doubt until a repair"
MISDIRECTED = ("misdirected write in data", "misdirected write in index", "misdirected write in hardstate")
RETIRED, INSTALLED, END_OF_INSTALL = "a log begins later", "a snapshot installed", "end during an install"
STORED, LOST = "a send of unknown outcome is stored", "a send of unknown outcome is nowhere"
RESENT = "a message is stored as it was sent again"
RECOGNIZED = "a leader had the message that was sent again"
NEW_LEADER = "a consumer went on with a new leader"
MIXED = "brokers of two versions serve together"
LOCKED_ANEW = "a queue went to another consumer after its leader had changed"
DELETED_MEANWHILE = "a topic was made again and deleted while the leader changed"
ORDERED_ANEW = "a queue was popped in order again after its leader had changed"
ORDERED_PARTLY = "a batch that was popped in order was acknowledged in part, and came again"
ORDERED_FREED = "a reset freed a queue that was popped in order"
IN_A_CALL = "the leader changed in the middle of an orderly call"
ANSWERED_ELSEWHERE = "a pull of a lost leader was answered over another connection"
FORWARDED = "a broker forwarded what only the leader can do"
ON_THE_WAY = "the leader changed while a request was forwarded to it"
WAITED = "a newer operation waited for an older broker"
WRITTEN = "a newer operation was written"
NEWER_INSTALLED = "a snapshot with a newer part was installed"
MOVED_ON = "a consumer offset moved on with a new leader"
NAMESRV_DOWN = "the NameServer was down while the leader changed"
SAME_GROUP = "a consumer went on where its group had been"
AGAIN = "a group was handed a message again"
OWN_SNAPSHOT = "a broker goes on from its own snapshot"
DERIVED = "a broker ended by its derived files"
ASKED = "a half message was committed when its producer was asked"
GIVEN_UP = "a half message was given up"
TIMER_ROLLED = "a timer message was put into the log again"
ROLL_KILLED = "a broker was killed as it put timer messages into the log again"
BATCH_PARTED = "a leader ended behind a batch that it made by itself"
TIMER_RECALLED = "a timer message was recalled while the leader changed"
TWO_CLOCKS = "timers of two clocks"
MADE_MEANWHILE = "a topic was made while the leader changed"
RESET_MEANWHILE = "offsets were reset while the leader changed"
STOOD_STILL = "clients were closed after a standstill"
FETCHED = "an index unit had to be fetched"
NO_SNAPSHOT = "a snapshot could not be read"
UNREADABLE = "a segment could not be read"
READ_AT_START = "a segment could not be read at a start"
LARGE, TOO_LARGE = "an entry of the largest size", "an append was refused as too large"
NO_CAPACITY = "an append was refused as too much was pending"
IN_CHANGE, IN_SNAPSHOT = "a fault during a membership change", "a fault while a state snapshot is taken"
IN_RECOVERY, IN_CUT = "end during recovery", "end during a truncation"
UNTOLD = "end between saving a term and telling it"
NO_BATCH = "a client batch is not there at all"
BY_LEASE = "a lease answered reads"
OLD_OVER_NEW = "a node of the older protocol leads one of the newer"
NEW_OVER_OLD = "a node of the newer protocol leads one of the older"

MARKS_FROM_SEEDS = 100
"""A run of fewer seeds than this never fails because of coverage marks that no seed reached (see also
`MET_IN_SEEDS`)."""
MET_IN_SEEDS = 10
"""How many seeds of the profiles that list a mark (or have a fault) must have been played before the run
fails because none of them reached it. For rare marks see `MET_IN`."""
MET_IN: dict[str, int] = {
    MADE_MEANWHILE: 15, RESET_MEANWHILE: 100, END_OF_INSTALL: 15, STORED: 20, IN_CUT: 20,
    TIMER_RECALLED: 250, TWO_CLOCKS: 1000,
}  # fmt: skip
"""For rare marks, used instead of `MET_IN_SEEDS`: maps a mark to how many seeds must have been played.

The numbers follow from the rates in some 5,000 seeds. With them, a mark is missed by chance alone about once
in 10,000 runs. A run of 300 seeds is enough for all marks except the last two. A situation that would be
rarer has a fault of its own (`Profile.also`).
"""

PROFILES: dict[str, Profile] = {
    "kills": Profile(
        (KILL, CRASH, KILL_ALL, RESTARTS),
        also=(KILL_IN_WRITE,),
        marks=(TAIL, NOT_DURABLE, OLDER_TERM, ROLLED, NO_BATCH, TORN),
    ),
    "power": Profile(
        (POWER, POWER_CRASH, POWER_ALL, KILL),
        also=(SAVE_CRASH,),
        marks=(TAIL, NOT_DURABLE, ALL_DARK, RECOVERED, NOWHERE, NO_BATCH, UNTOLD),
    ),
    "all-power-loss": Profile(
        (Draw("power-all", 4, LEADERS, (20, 2_000), (0, 60)), POWER_CRASH, CRASH, ISOLATE),
        marks=(TAIL, NOT_DURABLE, ALL_DARK, RECOVERED, NOWHERE, TORN, NO_BATCH, UNTOLD),
    ),
    "partitions": Profile(
        (CUT, ISOLATE, RING, BRIDGE, CHURN, CLIENTS_CUT, KILL),
        also=(CUT_CRASH,),
        nodes=EITHER,
        marks=(OLD_LEADS, NO_CONTACT, STICKY, TRUNCATED, IN_CUT),
    ),
    "asymmetric": Profile(
        (ONE_WAY, DEAF, MUTE, KILL, CUT_CRASH, SHORT_MEMORY),
        nodes=EITHER,
        marks=(OLD_LEADS, NO_CONTACT, STICKY, TRUNCATED, IN_CUT, FETCHED)
    ),
    "bad-links": Profile(
        (DELAY, LOSS, NARROW, SILENCE, RESET, HALF_OPEN, STRAND, KILL),
        segment=512 * 1024,
        max_entry=256 * 1024,
        marks=(STICKY, LARGE, TOO_LARGE),
    ),
    "strangers": Profile((GARBAGE, CROWD, RESET, KILL, CUT), also=(CROWDS,), marks=(ROLLED,)),
    "restart-loops": Profile(
        (Draw("restarts", 3, ANY, (10, 400), (2, 8)), KILL_ALL, POWER, CUT),
        marks=(OLDER_TERM, STICKY, ROLLED),
    ),
    "stop-continue": Profile(
        (Draw("stop", 3, LEADERS, (50, 10_000)), STALL, SLOW, KILL, POWER), marks=(OLD_LEADS, STICKY)
    ),
    "clocks": Profile(
        (CLOCK_JUMP, CLOCK_DRIFT, KILL, POWER, ISOLATE),
        also=(CLOCK_STILL,),
        marks=(OLD_LEADS, STICKY, ROLLED),
    ),
    "leases": Profile(
        (DRIFT_IN_MARGIN, CLOCK_JUMP, STOP, STALL, KILL, POWER, ISOLATE, ORPHAN, CUT, TRANSFER),
        nodes=EITHER,
        lease_reads=True,
        marks=(BY_LEASE, OLD_LEADS, STICKY),
    ),
    # Without wipes and rot, because repairs and installs need version 2 of the peer protocol.
    "versions": Profile(
        (KILL, CRASH, POWER_CRASH, POWER_ALL, RESTARTS, TERMINATE, TRANSFER, STOP, CUT, ISOLATE),
        nodes=EITHER,
        versions=True,
        marks=(OLD_OVER_NEW, NEW_OVER_OLD, TAIL, OLDER_TERM),
    ),
    "slow-disk": Profile(
        (DISK_SLOW, DISK_HANG, SHORT_MEMORY, KILL, POWER_CRASH, CUT),
        also=(DISK_SLOWER,),
        bursts=(300, 600),
        pending=200,
        marks=(TAIL, NOT_DURABLE, RECOVERED, OLDER_TERM, FETCHED, NO_CAPACITY),
    ),
    "disk-errors": Profile(
        (EIO_WRITE, EIO_FSYNC, KILL, POWER_CRASH, CUT),
        nodes=EITHER,
        marks=(BY_ITS_DISK, REFILLED, TORN, TAIL, RECOVERED, IN_RECOVERY),
    ),
    "wipes": Profile(
        (Draw("wipe", 2, ANY, (50, 4_000)), KILL, POWER, CUT, ISOLATE), marks=(ADMITTED, ROLLED)
    ),
    "membership": Profile(
        (GROW, SHRINK, PREFER, WIPE, KILL, CUT, ISOLATE, CHURN, POWER_CRASH),
        nodes=EITHER,
        spares=2,
        also=(CHANGE_CRASH, REJOIN),
        marks=(ADDED, REMOVED, REPLACED, IN_CHANGE, CAME_BACK),
    ),
    "operators": Profile((TRANSFER, TERMINATE, KILL, CUT, STALL), marks=(TOLD_TO_STAND, STICKY)),
    "mixed": Profile(
        (
            KILL, CRASH, KILL_ALL, POWER, POWER_CRASH, POWER_ALL, RESTARTS, TERMINATE, TRANSFER, STOP, STALL,
            SLOW, CLOCK_JUMP, CLOCK_DRIFT, DISK_SLOW, DISK_HANG, SHORT_MEMORY, EIO_WRITE, EIO_FSYNC, WIPE,
            CUT, ONE_WAY, ISOLATE, DEAF, MUTE, RING, BRIDGE, CHURN, CLIENTS_CUT, DELAY, LOSS, NARROW, SILENCE,
            RESET, HALF_OPEN, STRAND, GARBAGE, CROWD,
        ),
        nodes=EITHER,
        marks=(TAIL, OLDER_TERM, STICKY, ADMITTED, REFILLED, TRUNCATED),
    ),
    "five-nodes": Profile(
        (KILL, POWER, POWER_ALL, CRASH, STOP, EIO_FSYNC, WIPE, CUT, ISOLATE, RING, BRIDGE, CHURN, ONE_WAY),
        also=(SAVE_CRASH,),
        nodes=(5,),
        marks=(TAIL, OLD_LEADS, NO_CONTACT, ADMITTED, REFILLED, OLDER_TERM, UNTOLD),
    ),
    "async-flush": Profile(
        (KILL, CRASH, KILL_ALL, POWER, Draw("power-crash", 3, ANY, (50, 3_000), (1, 40)), CUT, ISOLATE),
        nodes=EITHER,
        sync_flush=False,
        also=(KILL_IN_WRITE,),
        marks=(TAIL, OLDER_TERM, REFILLED, RECOVERED),
    ),
    "disk-stall": Profile((DISK_STALL, DISK_SLOW, KILL, CUT), marks=(STALLED, OLDER_TERM)),
    "disk-full": Profile((DISK_ROOM, KILL, POWER, CUT), nodes=EITHER, marks=(FULL, REFUSED)),
    "retention": Profile(
        (
            RETIRE, OUTAGE, INSTALL_CRASH, CRASH, POWER_CRASH, POWER_ALL, Draw("wipe", 2, ANY, (50, 4_000)),
            CUT, CLOCK_JUMP, SHORT_MEMORY,
        ),
        nodes=EITHER,
        segment=32 * 1024,
        reserved_s=15.0,
        ballast=40_000,
        also=(SNAPSHOT_CRASH, EIO_SNAPSHOT),
        marks=(RETIRED, INSTALLED, END_OF_INSTALL, ADMITTED, FETCHED, IN_SNAPSHOT, NO_SNAPSHOT),
    ),
    "small-segments": Profile(
        (
            RETIRE, OUTAGE, INSTALL_CRASH, CRASH, POWER_CRASH, Draw("wipe", 2, ANY, (50, 4_000)), CUT,
            ISOLATE, TRANSFER, TERMINATE, DISK_SLOW,
        ),
        nodes=EITHER,
        segment=8 * 1024,
        max_entry=4 * 1024,
        reserved_s=15.0,
        snapshots=4,
        ballast=2_000,
        dawdling=True,
        also=(SNAPSHOT_CRASH, EIO_SNAPSHOT, CUT_CRASH, KILL_IN_WRITE),
        marks=(RETIRED, INSTALLED, NO_SNAPSHOT),
    ),
    "rot": Profile(
        (ROT, LOSE_SEGMENT, SHORT_MEMORY, KILL, POWER_CRASH, CUT),
        also=(EIO_READ,),
        nodes=EITHER,
        marks=(FAULTY, REPAIRED, FETCHED, UNREADABLE, READ_AT_START),
    ),
    "rot-elsewhere": Profile(
        # There are two kinds of cuts, because the other faults often have to be left out while a node is not
        # whole yet.
        (ROT, ROT_INDEX, ROT_VOTES, LOSE_MEMBERS, LOSE_SEGMENT, GROW, SHRINK, KILL, POWER_CRASH, CUT,
         CUT, ISOLATE),
        nodes=EITHER,
        spares=2,
        also=(LOSE_VOTES, ROT_CHECKPOINT),
        marks=(FAULTY, REPAIRED, VOTES_LOST, ADDED, IN_DOUBT),
    ),
    # Without power loss. If a write of a durable entry landed at a wrong place and the entry's index unit is
    # not durable yet, the entry is taken for a torn tail after a power cut (docs/explanation/guarantees.md).
    "misdirected": Profile(
        (MISDIRECT, KILL, CUT, ISOLATE), also=(MISDIRECT_VOTES,), marks=(FAULTY, REPAIRED, *MISDIRECTED)
    ),
    "spread": Profile(
        (KILL, CRASH, POWER, POWER_CRASH, POWER_ALL, EIO_FSYNC, CUT),
        spread_chance=0.1,
        marks=(TAIL, NOT_DURABLE, RECOVERED, OLDER_TERM, IN_RECOVERY, UNTOLD),
    ),
    "brokers": Profile(
        (
            KILL, KILL_ALL, RESTARTS, TERMINATE, TRANSFER, STOP, STALL, CLOCK_JUMP, CUT, ISOLATE, CLIENTS_CUT,
            DELAY, RESET, HALF_OPEN, NAMESRV_LEADER, NAMESRV_CUT, NAMESRV_STOP, CLIENT_KILL,
        ),
        also=(ROLL_KILL,),
        brokers=True,
        marks=(
            RESENT, RECOGNIZED, STORED, LOST, NEW_LEADER, MOVED_ON, NAMESRV_DOWN, SAME_GROUP, AGAIN,
            MADE_MEANWHILE, ASKED, GIVEN_UP, FORWARDED, ON_THE_WAY, RESET_MEANWHILE, TIMER_ROLLED,
            TIMER_RECALLED, TWO_CLOCKS, ROLL_KILLED, STOOD_STILL,
        ),
    ),
    "brokers-power": Profile(
        (
            POWER, POWER_CRASH, POWER_ALL, CRASH, KILL, EIO_WRITE, EIO_FSYNC, DISK_SLOW, DISK_HANG, WIPE,
            SHORT_MEMORY, EIO_DERIVED, ISOLATE, NAMESRV_POWER, CLIENT_KILL,
        ),
        brokers=True,
        marks=(
            TAIL, NOT_DURABLE, ALL_DARK, OWN_SNAPSHOT, STORED, LOST, RESENT, RECOGNIZED, SAME_GROUP, AGAIN,
            MADE_MEANWHILE, DERIVED,
        ),
    ),
    "brokers-retention": Profile(
        (
            RETIRE, OUTAGE, CRASH, POWER_CRASH, POWER_ALL, INSTALL_CRASH, WIPE, CUT, CLOCK_JUMP, TERMINATE,
            NAMESRV_KILL, CLIENT_KILL,
        ),
        brokers=True,
        segment=32 * 1024,
        reserved_s=15.0,
        marks=(
            RETIRED, INSTALLED, END_OF_INSTALL, ADMITTED, NEW_LEADER, STORED, LOST, RESENT, RECOGNIZED,
            SAME_GROUP,
        ),
    ),
    # Brokers are upgraded one after another. Some go back to the older program before all are upgraded.
    # Retention is on.
    "brokers-upgrade": Profile(
        (
            RETIRE, OUTAGE, RESTARTS, KILL, KILL_ALL, CRASH, POWER_CRASH, INSTALL_CRASH, CUT, ISOLATE,
            TERMINATE,
        ),
        brokers=True,
        upgrades=True,
        segment=32 * 1024,
        reserved_s=15.0,
        marks=(RETIRED, INSTALLED, NEW_LEADER, MIXED, WAITED, WRITTEN, NEWER_INSTALLED),
    ),
    # A leader ends while queues move between consumers, and in the middle of a call of a listener.
    "brokers-orderly": Profile(
        (
            KILL, KILL_ALL, TERMINATE, TRANSFER, STOP, CLOCK_JUMP, CUT, ISOLATE, CLIENTS_CUT, DELAY, RESET,
            HALF_OPEN, POWER, NAMESRV_LEADER, CLIENT_KILL, CLIENT_KILL,
        ),
        brokers=True,
        orderly=True,
        marks=(NEW_LEADER, LOCKED_ANEW, IN_A_CALL, ORDERED_ANEW, ORDERED_PARTLY, ORDERED_FREED),
    ),
    # Topics are deleted and created again while leaders end, nodes start again from their snapshots, and
    # retention removes the beginning of the log.
    "brokers-deletes": Profile(
        (
            KILL, KILL_ALL, RESTARTS, TERMINATE, TRANSFER, STOP, CUT, ISOLATE, POWER, POWER_CRASH, CRASH,
            RETIRE, OUTAGE, WIPE, CLIENT_KILL,
        ),
        brokers=True,
        deletes=True,
        segment=32 * 1024,
        reserved_s=15.0,
        marks=(NEW_LEADER, RETIRED, INSTALLED, DELETED_MEANWHILE),
    ),
    # Leaders end, and clients and brokers notice it in every possible order, or not at all.
    "brokers-unaware": Profile(
        (
            KILL, KILL, KILL_ALL, RESTARTS, TERMINATE, TRANSFER, STOP, CUT, ISOLATE, CLIENTS_CUT, SILENCE,
            RESET, HALF_OPEN, POWER, DELAY, NAMESRV_LEADER, CLIENT_KILL,
        ),
        brokers=True,
        unaware=True,
        marks=(NEW_LEADER, FORWARDED, ON_THE_WAY, ANSWERED_ELSEWHERE),
    ),
    # Leaders end while they write messages from their own state: delays, timers, transactions, retries.
    "brokers-batches": Profile(
        (BATCH_CRASH, KILL, TRANSFER, POWER, STOP, ISOLATE, DELAY),
        brokers=True,
        marks=(NEW_LEADER, BATCH_PARTED, STORED),
    ),
}  # fmt: skip
