"""The flight recorder: what the pure core of a node saw and decided in the last minutes, on disk.

The core consists of the elector and the replication as leader and as follower. It reads no clock and no file,
so its inputs decide everything that it does. The recorder notes each call of the core with its arguments, the
values that the core read from the log and from the source of random numbers meanwhile, and a digest of the
effects. The replay steps the same version of the core through the notes and must get the same digests.

* `calls`       which methods of the core are recorded, and how their arguments are encoded
* `tape`        notes calls while a node runs: one buffer, filled on the event loop
* `cores`       recorded variants of the three classes of the core
* `states`      the whole state of the core as plain data, and back
* `version`     identifies the source of the core; another version cannot replay a recording
* `blocks`      the format of the files, with checksums
* `recorder`    writes the tape into a ring of files, in a worker
* `reading`     reads the files of a ring, and names what is missing
* `steps`       a step of a replay as plain data, for tables and pages
* `replaying`   steps the core through a recording

A recording begins when a node opens its store. Each file begins with the whole state, so a replay can begin
at each file. Files are never fsynced: they survive the end of the process. After a loss of power the newest
blocks may be missing or torn, which the checksums and numbers of the blocks show.
"""
