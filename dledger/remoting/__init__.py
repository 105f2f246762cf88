"""RocketMQ's remoting protocol: encodes and decodes commands, and has an asyncio server and client for them.

* `codes`             request, response and language numbers
* `errors`            errors of requests
* `commands`          one request, one response
* `frames`            encodes and decodes commands, in both serializations; pure
* `headers`           the typed header of each request
* `fastjson`          JSON as fastjson writes it: unquoted and object keys
* `bodies`            typed bodies: heartbeat, route, cluster, topic lists; `auth_bodies` users and policies
* `registration`      a broker's report to a NameServer: topic configs with a data version
* `messages`          the body of a batch of messages
* `server`, `connection`, `client`, `link`   the two ends of a socket; `limits` has all of their limits
* `address_server`    asks for the addresses of the NameServers
* `exposure`          checks whether any machine may connect
* `settings_requests` requests that show and change the settings of a server
* `cli`               the process around the commands: arguments, logging, signals

One frame is `length (4), serialization type (1) and header length (3), header, body`. The header is JSON or
RocketMQ's binary form; an answer has the same form as its request. `docs/reference/protocol.md` says more.
"""
