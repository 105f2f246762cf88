"""Check what Spark needs, one thing after another: `dledger spark doctor [STORE ...]`.

Each check says what was found and, if that is not good, what to do. First the machine is checked without
Spark. Then a session is started, and a small job makes checks on every executor.

* `check`: the result of a check, and all results as JSON and as text
* `machine`: checks of this machine: Python, packages, Java, memory, disk and stores
* `job`: checks of the session and of the executors
* `probe`: the data source through which the executors answer
"""

from dledger.spark.doctor.check import Check, Diagnosis, Status
from dledger.spark.doctor.examine import examine

__all__ = ["Check", "Diagnosis", "Status", "examine"]
