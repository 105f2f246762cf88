"""Breaking the group on purpose, and showing that nothing acknowledged is lost.

* `sim/`        the whole stack in one process: virtual time, simulated network and disk, one seed
* `cluster`     a group of real processes on loopback
* `processes`   pid files, signals
* `wire`        raw frames, valid and broken
* `workload`    histories of produced and consumed messages, and the checks on them
"""
