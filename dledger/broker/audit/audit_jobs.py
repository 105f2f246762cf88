"""Scans of this broker's store for auditors: one after another, in a lane of their own, at a limited rate.

Each scan is a job. Its rows are kept as encoded pages until their room is needed, so that they can be fetched
page by page, and so that a second auditor can use what was read for the first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING

from dledger.remoting.codes import ResponseCode
from dledger.remoting.errors import RemotingError
from dledger.runtime.env import Env
from dledger.runtime.files import Files
from dledger.runtime.rate_limit import Pace, PacedFiles
from dledger.runtime.workers import Lane

if TYPE_CHECKING:
    from dledger.audit.row_codec import AnyRow

HOLD_S = 5.0
"""Seconds after which a request for rows that are not ready is answered; the auditor then asks again."""
WANTED_S = 30.0
"""A job that no auditor asked about for this many seconds is not started."""
MAX_WAITING = 64
"""Jobs that wait for their turn; one more is refused with SYSTEM_BUSY."""
MAX_JOB_BYTES = 32 * 1024 * 1024
"""Bytes of rows of one job; a job with more fails."""
MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Bytes of rows of all finished jobs; beyond this the oldest jobs are dropped."""
MAX_KEPT_JOBS = 4096
"""Finished jobs that are kept; beyond this the oldest are dropped."""

Work = Callable[[Files], "Iterable[AnyRow]"]
"""What a job does, in a thread."""


class TooManyRows(Exception):
    """A scan has more rows than are kept for one job."""


class Job:
    """A scan that was requested. When it is `done`, the rows are in `pages`, or `error` and `code` say why it
    failed."""

    __slots__ = ("asked_at", "began_at", "code", "done", "error", "id", "key", "pages", "waiting", "work")

    def __init__(self, job_id: str, key: Hashable, work: Work, now: float) -> None:
        self.id: str = job_id
        self.key: Hashable = key
        self.work: Work = work
        self.asked_at: float = now
        self.began_at: float = now
        self.done: bool = False
        self.pages: list[bytes] = []
        self.error: str = ""
        self.code: int = ResponseCode.SYSTEM_ERROR
        self.waiting: dict[Callable[[], None], asyncio.TimerHandle] = {}

    @property
    def size(self) -> int:
        """Bytes of the pages."""
        return sum(map(len, self.pages))


class AuditJobs:
    """All jobs of one broker. A job makes progress only while `run` is running."""

    def __init__(self, env: Env, bytes_per_s: int) -> None:
        self.pace: Pace = Pace(bytes_per_s)
        self.files: PacedFiles = PacedFiles(env.files, self.pace)
        self._env = env
        self._log = env.log.child("audit")
        self._jobs: dict[str, Job] = {}  # oldest first
        self._queue: deque[Job] = deque()
        self._wake = asyncio.Event()

    def now_ms(self) -> int:
        """Wall clock of this machine in ms, the clock that also sets the times of its files."""
        return self._env.wall.now_ms()

    def start(self, key: Hashable, work: Work, max_age_s: float = 0.0) -> Job:
        """Start a job for `work`, or return one with the same key that began at most `max_age_s` seconds ago.
        RemotingError SYSTEM_BUSY if MAX_WAITING jobs wait already."""
        now = asyncio.get_running_loop().time()
        for job in self._jobs.values():
            if job.key == key and now - job.began_at < max_age_s and not job.error:
                return job
        if len(self._queue) >= MAX_WAITING:
            raise RemotingError(
                ResponseCode.SYSTEM_BUSY, f"{MAX_WAITING} audit scans are already waiting: try again later"
            )
        job = Job(f"{self._env.random.getrandbits(64):016x}", key, work, now)
        self._jobs[job.id] = job
        self._queue.append(job)
        self._wake.set()
        return job

    def find(self, job_id: str) -> Job:
        """The job with this id. RemotingError QUERY_NOT_FOUND if it is unknown or was dropped."""
        job = self._jobs.get(job_id)
        if job is None:
            raise RemotingError(
                ResponseCode.QUERY_NOT_FOUND,
                f"audit job {job_id} is unknown to this broker (it was dropped, or the broker was "
                "restarted): start the audit again",
            )
        return job

    def wait(self, job: Job, answer: Callable[[], None]) -> None:
        """Call `answer` when the job is done, or after HOLD_S."""
        loop = asyncio.get_running_loop()
        job.asked_at = loop.time()
        if job.done:
            answer()
        else:
            job.waiting[answer] = loop.call_later(HOLD_S, self._held_long_enough, job, answer)

    def _held_long_enough(self, job: Job, answer: Callable[[], None]) -> None:
        del job.waiting[answer]
        answer()

    async def run(self) -> None:
        """Do the jobs, until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    job = self._queue.popleft()
                    if job.waiting or loop.time() - job.asked_at < WANTED_S:
                        job.began_at = loop.time()
                        await self._do(job)
                    else:
                        del self._jobs[job.id]
        finally:
            self.pace.stop()

    async def _do(self, job: Job) -> None:
        try:
            job.pages = await self._env.workers.run(Lane.SCAN, _collect, job.work, self.files)
        except RemotingError as error:
            job.error, job.code = error.remark, error.code or job.code
        except Exception as error:  # the boundary of one request (safety.md S29): told to who asked
            job.error = f"{type(error).__name__}: {error}"
            self._log.warning("audit job failed", error=job.error)
        job.done = True
        self._drop_old()
        waiting, job.waiting = job.waiting, {}
        for answer, timer in waiting.items():
            timer.cancel()
            answer()

    def _drop_old(self) -> None:
        done = [job for job in self._jobs.values() if job.done]
        size, count = sum(job.size for job in done), len(done)
        for job in done[:-1]:
            if size <= MAX_KEPT_BYTES and count <= MAX_KEPT_JOBS:
                return
            size -= job.size
            count -= 1
            del self._jobs[job.id]


def _collect(work: Work, files: Files) -> list[bytes]:
    # Here, so that numpy is loaded where it is wanted, and in this thread.
    from dledger.audit.row_codec import encode_pages

    pages: list[bytes] = []
    size = 0
    for page in encode_pages(work(files)):
        size += len(page)
        if size > MAX_JOB_BYTES:
            raise TooManyRows(
                f"more than {MAX_JOB_BYTES} bytes of rows: audit this store's directory instead"
            )
        pages.append(page)
    return pages
