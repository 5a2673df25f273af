"""The links of one node: dialing, accepting, the handshake, and which of two wins."""
