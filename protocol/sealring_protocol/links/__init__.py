"""The links of one node: dialing, accepting, the handshake, and the choice between crossing
dials."""
