"""Why the ring does not serve, and which peers were refused: for logs, status and clients."""
