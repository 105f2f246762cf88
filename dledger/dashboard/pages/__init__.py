"""The pages of the dashboard.

* `page`: what a page is, and the words of its address
* `registry`: all pages
* `overview`, `nodes`, `topics`, `groups`, `messages`: the pages of each subject
"""
