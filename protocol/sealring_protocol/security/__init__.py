"""Node identities, the roster of the cluster, the handshake and the sealed channels."""
