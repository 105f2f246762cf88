"""Registration with the NameServers.

* `registrar`     who leads, with which topics; at once when that changes
* `name_servers`  which NameServers there are: configured, looked up, or told by an address server
"""
