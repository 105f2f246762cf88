"""Load generators for a running group: `dledger bench produce|consume --namesrv ADDR`.

The loop is closed: `window` requests are in flight at any time, and each acknowledgement starts the next
request. The generator makes no object of its own per message: slots are reused, and latencies go into a
histogram. The output says how it was measured: warm-up left out, the generator's own CPU time, gc settings.
"""
