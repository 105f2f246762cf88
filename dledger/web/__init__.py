"""What all HTTP ports share (aiohttp).

* `port`: one port, with limits of its connections
* `listener`: the connections of a port
* `program`: what each program says of itself: its version, and figures of its process
"""
