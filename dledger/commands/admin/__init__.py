"""`dledger admin`: topics, groups, messages, offsets, brokers, NameServers and access control, for people.

Tables by rich, `--json` for programs, `--dry-run` for what changes, a question before what destroys.
`running` connects and tells errors, `showing` prints, `places` says which brokers are meant, `completing`
completes names. The other modules are the commands, by what they are about; `cli` puts them together.
"""
