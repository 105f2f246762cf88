"""The small files of a store: `identity`, `run_lock`; `offline` reads a whole store without its node."""
