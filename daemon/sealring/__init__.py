"""The provider daemon and the `sealring` command: a ring of nodes behind an HTTP API and a page."""
