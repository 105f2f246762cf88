"""One member of a group: the shell that runs the pure parts on asyncio.

* `node` the parts of a node, from start to end, and the order in which parts are notified
* `parts` all parts together, for modules that need many
* `inbox`        messages of peers and clients; `requests` the DLedger client protocol
* `leadership` leading: opening a term, sealing and appending entries, serving, handing over
* `reads`        linearizable read points
* `health` whether the node is fit to lead, with `device_watch`: how long a disk has not answered
* `trust` whether the node's store may vote and count, with `powerloss` and `leaderless`: after a loss of
  power, or of stores
* `reconfiguration`   changes of members and leader, decided by the leader one at a time, with
                 `member_requests`: the server side of the member commands
* `repair`       repair of corrupt entries from peers
* `invariants`   conditions that hold between any two steps
* `status`       the status for operators; `metrics` its figures

Their common base is `dledger.context`.

Which part knows which: every part is made with a `NodeContext` and with the parts whose methods it calls.
There are no subclasses.

    Node ── NodeContext   env, config, log, host, members (config_log), versions, peers, held,
     │                    elector ◄─ elections, replicator
     │
     ├── Applier, Repairer, ConfigSearch, MemberEffects
     ├── Joining, Trust ──► MemberEffects
     ├── Snapshots ───────► Applier (and calls Trust when an install begins)
     ├── Leadership ──────► MemberEffects, Applier
     ├── Reconfiguration ─► MemberEffects, Leadership
     ├── ReadPoints ──────► Leadership, Applier
     ├── HealthWatch ─────► Leadership, Trust
     └── NodeStatus, ClientRequests, Inbox ──► all of them (`NodeParts`)

Which part calls which:

* A peer: Peers ─(`PeerEvents`)► Inbox ─► (HeldMessages, while term and vote are being saved) ─► the part that
  handles the message, or elector ─effects► Elections, Replicator ─► Peers, disk.
* The results: Elections and parts ─(`NodeEvents`)► Node, Replicator ─(`ReplicatorEvents`)► Node ─► all parts
  that are concerned, in the order that `node` defines. These three protocols are the only ways back.
* The elector only decides. Its methods return effects, and `Elections.perform` performs them in order.
"""
