"""Check what Spark needs, one thing after another: `dledger spark doctor [STORE ...]`.

Each check says what was found and, if that is not good, what to do. The machine is checked first, without
Spark; then a session is started and a small job runs the same checks on every executor.

* `check`    what a check is; all of them as JSON and as text
* `machine`  Python, packages, Java, memory, disk and stores of this machine
* `job`      the session and the executors
* `probe`    the data source that the executors answer through
"""

from dledger.spark.doctor.check import Check, Diagnosis, Status
from dledger.spark.doctor.examine import examine

__all__ = ["Check", "Diagnosis", "Status", "examine"]
