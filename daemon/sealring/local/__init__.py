"""What runs on this machine for its owner: whole rings, and clients of nodes."""
