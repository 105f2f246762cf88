"""The command `dledger` and all of its sub-commands. The module `app` lists them in a table."""
