"""`dledger produce` and `dledger consume`: messages from and to files, pipes and terminals."""
