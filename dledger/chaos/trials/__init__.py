"""Trials: groups of real processes under faults, with clients, judges and a report.

The simulator shows what our model of the world can show. A trial runs the real programs, with sockets, files
and a kernel. The clients and the judges are those of the simulator (`dledger.chaos.scenarios`), so both mean
the same by "lost" or "out of order".

* `scenario`   what a trial does: a short TOML file; those of the project are in `library/`
* `drawing`    makes the plan of a trial, that is, all operations and faults, from its seed
* `system`     the system under test, as the other modules see it
* `arena`      a group of the trial's own: its processes, and what they report about themselves
* `attached`   a group that others have started; `attaching` finds it and says what may be done to it,
  `client_proxy` breaks the links of clients, `executed` runs commands of the user, `live_log` reads its log
* `client_kinds`  the table of all kinds of clients
* `log_reader`  a client that reads the log itself
* `other_clients`  the Java and Go clients of Apache RocketMQ; `other_tools` starts the programs in `others/`
* `stage`      the trial as the client programs see it
* `nemeses`    the table of all kinds of faults; the faults of processes, and what undoes them
* `disk_nemeses`, `network_nemeses`, `member_nemeses`  the faults of disks, clocks and power, of networks, and
  of operators who change the members
* `faulty_broker`  the unchanged broker with files and a clock that can be broken (`surroundings`): `switches`
  switches faults on and off, `faulty_files` obeys them, `extents` knows what a full disk still takes
* `undo_journal`, `power_loss`  what is not synced, and how a loss of power undoes it
* `rot`        flips bits in the files of a store
* `network`    the interface of networks: `namespaces` for root, `proxy` (with `links`) otherwise
* `conductor`  runs a trial: clients, faults, the end phase
* `evidence`   what a trial leaves: the history of its clients, and the log of each node
* `checkers`   the verdicts
* `result`     the result as one JSON object, for the report and for programs
* `page`       the report as an HTML page; its pictures are drawn by `charts`
"""
