"""Audits of a running broker.

* `audit_processor`: the requests of an audit
* `log_processor`: the request for bytes of the log
* `audit_jobs`: scans in a thread, at a limited rate
* `shipping`: scans that a broker makes without being asked, and writes to an object store
"""
