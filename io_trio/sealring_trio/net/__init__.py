"""Sockets: TCP connections between nodes, and what reads and writes them."""
