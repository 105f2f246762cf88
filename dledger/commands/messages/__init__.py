"""`dledger produce` and `dledger consume`: read messages from files, pipes and terminals, and write
messages to them."""
