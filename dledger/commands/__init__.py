"""The command `dledger` with all of its sub-commands. `app` has the table of them."""
