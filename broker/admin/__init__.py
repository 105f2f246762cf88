"""Administration of a broker.

* `admin_processor`   runtime figures and settings
"""
