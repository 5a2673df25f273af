"""One running node: its event loop, its control socket, requests and status."""
