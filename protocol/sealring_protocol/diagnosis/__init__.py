"""Why the ring does not serve, and who was refused why: for logs, status and whoever waits."""
