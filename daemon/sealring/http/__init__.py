"""The HTTP server of the head: connections, the gate, and what each path does."""
