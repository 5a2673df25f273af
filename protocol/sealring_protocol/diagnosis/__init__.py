"""Why the ring does not serve, and which peers were refused and why: for logs, status and
clients."""
