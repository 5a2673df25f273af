"""Clients as people install them, from PyPI and npm, against real rings.

``python -m tests.clients`` makes an environment for each group of clients in a cache folder, starts
two rings of one rank (the tiny model, and a model that plays `tests.clients.rings` scripts), runs
each client's script in its environment, and prints which feature holds over which API. It needs the
registries when it installs, and no internet when it runs. It exits with 1 if something fails that
is not among `tests.clients.catalog.UNSERVED`.
"""
