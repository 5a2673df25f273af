"""How a machine joins a cluster by an invitation: what both ends say, and who may."""
