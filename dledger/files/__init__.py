"""The small files of a store (`identity`, `run_lock`, `foreign`), and `offline`, which reads a whole store
without its node."""
