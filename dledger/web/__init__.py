"""What all HTTP ports share (aiohttp).

* `port`: one port, with limits of its connections
* `listener`: the connections of a port
* `program`: paths and metrics that all programs have
"""
