"""Registration with the NameServers.

* `registrar`     reports the role and the topics of this broker; at once when they change
* `name_servers`  which NameServers there are: configured, looked up, or named by an address server
"""
