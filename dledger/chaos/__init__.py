"""Breaking the group on purpose, and showing that nothing acknowledged is lost.

* `machine/`    the whole stack in one process: virtual time, simulated network and disk, one seed
* `scenarios/`  groups on simulated machines, faults drawn from seeds, and judges that check each run
* `cores/`      the pure parts alone: a group without a loop, a disk or a clock
* `mutants/`    small wrong changes that the tests must notice
* `invariants`  what must hold in every group at every moment
* `failover`, `replacement`   groups of real processes on loopback, with kills and lost stores
* `workload`    histories of produced and consumed messages, and the checks on them
"""
