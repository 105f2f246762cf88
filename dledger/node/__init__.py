"""One member of a group: the shell that runs the pure parts on asyncio.

* `node`         what a node is made of, its life, and who hears of what in which order
* `context`      what all parts may use; `parts` all of them, for those who speak with many
* `events`       what the parts tell the node
* `inbox`        what peers and clients say to it; `requests` the DLedger client protocol
* `elections`    the shell of the elector: its timer, its effects, term and vote on the disk
* `leadership`   leading: opening a term, sealing and pumping entries, serving, handing over
* `applier`      hands what is committed to the host
* `reads`        linearizable read points
* `health`       whether it is fit to lead, with `device_watch`: how long a disk owes an answer
* `trust`        whether its store may vote and count, with `powerloss` and `leaderless`: after a loss of
                 power, or of stores
* `repair`       of rotten entries
* `invariants`   what holds between any two steps
* `status`       what its operators ask; `metrics` its numbers

Who holds whom. Every part is made with a `NodeContext` and the parts that it asks; nobody subclasses.

    Node ── NodeContext   env, config, log, host, members (config_log), versions, peers, held,
     │                    elector ◄─ elections, replicator
     │
     ├── Applier, Repairer, ConfigSearch, MemberEffects
     ├── Joining, Trust ──► MemberEffects
     ├── Snapshots ───────► Applier, Trust
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
