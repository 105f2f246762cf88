"""Jobs that scan this broker's store for auditors.

The jobs run one after another, in a worker lane that nothing else uses, at a limited rate. The rows that a
job finds are kept as encoded pages until the limits below require their memory. So an auditor can fetch the
rows page by page, and a second auditor can use the rows that were read for the first.
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
"""Seconds after which a request for rows is answered even if the rows are not ready. The auditor then asks
again."""
WANTED_S = 30.0
"""Seconds after which a waiting job is not started if no auditor has asked about it meanwhile."""
MAX_WAITING = 64
"""Largest number of jobs that wait for their turn; one more is refused with SYSTEM_BUSY."""
MAX_JOB_BYTES = 32 * 1024 * 1024
"""Limit, in bytes, of the rows of one job; a job that finds more fails."""
MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Limit, in bytes, of the rows of all finished jobs; beyond it the oldest jobs are dropped."""
MAX_KEPT_JOBS = 4096
"""Largest number of finished jobs that are kept; beyond it the oldest are dropped."""

Work = Callable[[Files], "Iterable[AnyRow]"]
"""The work of a job: a function that runs in a thread, reads files and yields rows."""


class TooManyRows(Exception):
    """Raised if a scan finds more rows than may be kept for one job (MAX_JOB_BYTES)."""


class Job:
    """A scan that an auditor requested. When `done` is true, either the rows are in `pages`, or `error` and
    `code` say why the scan failed."""

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
        """Size of all pages in bytes."""
        return sum(map(len, self.pages))


class AuditJobs:
    """All jobs of one broker. Jobs make progress only while the task `run` is running."""

    def __init__(self, env: Env, bytes_per_s: int) -> None:
        self.pace: Pace = Pace(bytes_per_s)
        self.files: PacedFiles = PacedFiles(env.files, self.pace)
        self._env = env
        self._log = env.log.child("audit")
        self._jobs: dict[str, Job] = {}  # oldest first
        self._queue: deque[Job] = deque()
        self._wake = asyncio.Event()

    def now_ms(self) -> int:
        """Wall clock of this machine in ms. It is the clock from which the file system takes the times of
        files."""
        return self._env.wall.now_ms()

    def start(self, key: Hashable, work: Work, max_age_s: float = 0.0) -> Job:
        """Start a job for `work`. If a job with the same key began less than `max_age_s` seconds ago and did
        not fail, return that job instead. Raises RemotingError SYSTEM_BUSY if MAX_WAITING jobs wait
        already."""
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
        """Return the job with this id. Raises RemotingError QUERY_NOT_FOUND if the id is unknown or its job
        was dropped."""
        job = self._jobs.get(job_id)
        if job is None:
            raise RemotingError(
                ResponseCode.QUERY_NOT_FOUND,
                f"audit job {job_id} is unknown to this broker (it was dropped, or the broker was "
                "restarted): start the audit again",
            )
        return job

    def wait(self, job: Job, answer: Callable[[], None]) -> None:
        """Call `answer` when the job is done, at the latest after HOLD_S."""
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
        """Run the jobs one after another, until cancelled."""
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
        except Exception as error:  # the boundary of one job (safety.md S29): the auditor gets the error
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
    # Imported late, so that numpy is loaded only if it is needed, and in this thread.
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
