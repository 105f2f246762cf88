"""The log on disk: `store` (append, group commit, read), `segments` and `pool`, `index_files` and `units`,
`recovery`, `hard_state` (term and vote), `appender` (the leader's sealing), `store_clock` (what time it is),
`terms` (where terms start)."""
