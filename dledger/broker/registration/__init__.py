"""Registration of a broker with the NameServers.

* `registrar`: reports the role and the topics of this broker, at once when they change
* `name_servers`: which NameServers there are, from the settings, from DNS or from an address server
"""
