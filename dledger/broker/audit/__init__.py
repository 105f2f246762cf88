"""Audits of a running broker.

* `audit_processor`   the codes of an audit
* `audit_jobs`        scans in a thread, at a pace
* `shipping`          scans that a broker makes by itself and ships to an object store
"""
