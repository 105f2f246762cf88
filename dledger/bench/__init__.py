"""Load generators for a running group: `dledger bench produce|consume --namesrv ADDR`.

Closed loop: `window` requests are under way at any time, each acknowledgement starts the next. Per message
there is no object of the benchmark's own: slots are reused, latencies go into a histogram. What is printed
says how it was measured: warm-up left out, the generator's own CPU time, gc settings.
"""
