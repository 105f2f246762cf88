"""One member of a group: the shell that runs the pure parts on asyncio.

* `node`         the node: owns the log, the links, the timers and the order of things
* `inbox`        what peers and clients say to it, and in which order that is handled
* `leadership`   leading: opening a term, sealing and pumping entries, serving, handing over
* `applier`      hands what is committed to the host
* `reads`        linearizable read points; `requests` the DLedger client protocol
* `health`       whether it is fit to lead, with `device_watch`: how long a disk owes an answer
* `repair`       of rotten entries; `powerloss` and `leaderless`: after a loss of power, or of stores
* `status`       what its host and its operators ask; `metrics` its numbers
"""
