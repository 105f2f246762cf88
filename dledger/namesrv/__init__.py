"""The NameServer: which broker groups exist, where, and which topics they have.

Brokers register with every NameServer and repeat it; clients ask one of them. NameServers do not know each
other. Routes live in memory only and come from the brokers; the key-value table is on disk.

* `config`   NamesrvConfig
* `routes`   the route tables; pure, time is an argument
* `changes`  changes of them, one after the other and in pieces
* `kv`       the key-value table and its file
* `service`  request handlers, expiry, `main(env, config)`
* `cli`      the outer shell: `dledger namesrv`
"""
