"""Registration with the NameServers.

* `registrar`   who leads, with which topics; at once when that changes
"""
