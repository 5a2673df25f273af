"""What `sealring up` adds to a node: Unix socket, the API of a head, other models, its stop."""
