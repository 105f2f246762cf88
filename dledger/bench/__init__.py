"""Measurements on this machine: `dledger bench` and its sub-commands.

`dledger bench produce|consume --namesrv ADDR` put a load on a running group. `window` requests are in
flight at any time, and each acknowledgement starts the next request (a closed loop). The load generator
makes no object of its own per message: it reuses slots, and counts latencies in a histogram. The output
says how it was measured: the warm-up that was left out, the generator's own CPU time, and the settings of
garbage collection.
"""
