"""All delays and sizes of the simulated machines. Times are integers in nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Settings:
    """How fast the simulated machines are. A pair `(low, high)` stands for random numbers that are evenly
    distributed between the two."""

    # Processor: costs of one callback and of one turn of an event loop.
    callback_ns: int = 4 * US
    turn_ns: int = 5 * US
    turn_jitter_ns: int = 4 * US

    # Network, one way. A packet that was blocked is sent again some time after the cut has ended.
    latency_ns: tuple[int, int] = (40 * US, 120 * US)
    loopback_ns: tuple[int, int] = (8 * US, 25 * US)
    retransmit_ns: tuple[int, int] = (1 * MS, 200 * MS)
    connect_timeout_ns: int = 127 * SECOND  # Linux: six SYN retries
    backlog_retry_ns: int = 1 * SECOND  # a full accept queue drops the SYN; the next one comes later
    split_chance: float = 0.2  # probability that one send arrives in more than one piece
    window: int = 256 * 1024  # bytes of one direction that the kernels of sender and receiver hold together

    # Worker threads and the device.
    handoff_ns: tuple[int, int] = (5 * US, 50 * US)  # from run() to the first instruction of the job
    job_ns: tuple[int, int] = (5 * US, 40 * US)
    sync_ns: tuple[int, int] = (80 * US, 800 * US)  # added to a job that made something durable
    # probability that a job does not run in one piece (job_thread.py; costs real time)
    spread_chance: float = 0.0
    disk_threads: int = 2
    executor_threads: int = 8  # run_in_executor, to_thread
    disk_bytes: int = 1 << 40

    # Clocks. A monotonic clock starts at any time. Wall clocks are wrong by at most this much.
    epoch_ms: int = 1_790_000_000_000
    wall_skew_ms: int = 400
    uptime_ns: int = 1_000_000 * SECOND

    # The simulator itself.
    strict_disk: bool = True  # fsync or pread outside of a worker job, or two fsyncs in one, fail the run
    strict_names: bool = False  # looking up or opening a file outside of a worker job fails the run
    collect_every: int = 1 << 18  # number of events between two garbage collections; there are no others
    recent_log_lines: int = 60
