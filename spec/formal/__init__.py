"""A search for attacks on the handshake, over symbols instead of bytes. See README.md."""
