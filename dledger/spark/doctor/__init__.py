"""What Spark needs, looked for one by one: `dledger spark doctor [STORE ...]`.

Each check says what was found and, where it is not good, what to do. First the machine, without Spark;
then a session is started and a small job asks every executor the same.

* `check`    what a check is; all of them as JSON and as text
* `machine`  Python, packages, Java, memory, disk, stores, from here
* `job`      the session and the executors
* `probe`    the data source that the executors answer through
"""

from dledger.spark.doctor.check import Check, Diagnosis, Status
from dledger.spark.doctor.examine import examine

__all__ = ["Check", "Diagnosis", "Status", "examine"]
