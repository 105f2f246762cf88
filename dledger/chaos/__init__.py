"""Tools that break the group on purpose, and check that no acknowledged message is lost.

* `machine/`    the whole stack in one process: virtual time, simulated network and disk, one seed
* `scenarios/`  groups on simulated machines, random faults from seeds, and judges (code that checks each run)
* `cores/`      the pure parts alone, as a group without an event loop, a disk or a clock
* `mutants/`    small wrong changes that the tests must notice
* `invariants`  what must hold in every group at every moment
* `trials/`     groups of real processes under faults, with clients, judges and a report
* `failover`, `replacement`   groups of real processes on loopback, with kills and lost stores
* `workload`    histories of produced and consumed messages, and the checks on them
"""
