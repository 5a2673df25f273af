"""What `sealring up` adds to a node: generation, API, control socket, status, and its stop."""
