"""The page, which shows the ring at work, and what it is fed with.

| module | what it does |
| --- | --- |
| `pages` | serves the page and its files, which are in `static` as a browser takes them |
| `events` | tells the page every second what has changed |

The files need no key and tell nothing; what the page shows comes from the API, with the key of
whoever looks at it.
"""
