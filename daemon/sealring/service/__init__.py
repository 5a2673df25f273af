"""What `sealring up` adds to a node: control socket, the API of a head, other models, its stop."""
