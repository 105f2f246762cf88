"""The command `dledger`: the outer shell of everything. `app` is the table of its sub-commands."""
