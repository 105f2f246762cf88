"""The dashboard: a console for operators, in a browser (`dledger dashboard`).

* `watching`: follows one cluster: an hour of rates, roles and backlogs, in memory
* `facts`: what is asked for a page, shared by all who look at it at the same moment
* `pages`: one module for each subject. A page loads its data as a struct, and the same struct is its JSON
* `rendering`: makes HTML of a page's data (jinja2, in `templates/`)
* `wording`: English texts, and their Chinese translation (`languages/zh.toml`)
* `server`: the HTTP server: pages, their JSON, and streams of changes
* `program`: the command

Libraries for the browser are in `vendor/`, unmodified. No page needs anything from another host, and every
page can be read without JavaScript.
"""
