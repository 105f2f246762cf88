"""The NameServer: knows which broker groups exist, their addresses, and their topics.

Brokers register with every NameServer and renew their registrations; clients ask one of them. NameServers do
not know each other. Routes are kept only in memory and come from the brokers; the key-value table is on disk.

* `config`   NamesrvConfig
* `routes`   the route tables; pure, time is an argument
* `changes`  changes of the tables, one after the other and in steps
* `kv`       the key-value table and its file
* `service`  request handlers, expiry, `main(env, config)`
* `http_server`  health and metrics over HTTP
* `cli`      the process of `dledger namesrv`
"""
