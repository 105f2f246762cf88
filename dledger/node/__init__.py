"""One member of a group: the shell that runs the pure parts on asyncio.

* `node`         what a node is made of, its life, and who hears of what in which order
* `parts`        all parts, for those who speak with many
* `inbox`        what peers and clients say to it; `requests` the DLedger client protocol
* `leadership`   leading: opening a term, sealing and pumping entries, serving, handing over
* `reads`        linearizable read points
* `health`       whether it is fit to lead, with `device_watch`: how long a disk owes an answer
* `trust`        whether its store may vote and count, with `powerloss` and `leaderless`: after a loss of
                 power, or of stores
* `reconfiguration`   changes of members and leader, decided by the leader one at a time, with
                 `member_requests`: the server side of the member commands
* `repair`       of rotten entries
* `invariants`   what holds between any two steps
* `status`       what its operators ask; `metrics` its numbers

What they all stand on is in `dledger.context`.

Who holds whom. Every part is made with a `NodeContext` and the parts that it asks; nobody subclasses.

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

Who calls whom.

* A peer: Peers ─(`PeerEvents`)► Inbox ─► (HeldMessages, while term and vote are being saved) ─► the part that
  handles the message, or elector ─effects► Elections, Replicator ─► Peers, disk.
* What came of it: Elections and parts ─(`NodeEvents`)► Node, Replicator ─(`ReplicatorEvents`)► Node ─► all
  whom it concerns, in the order that stands in `node`. These three protocols are all the ways back.
* The elector is a value to ask. Its events return effects, and `Elections.perform` performs them in order.
"""
