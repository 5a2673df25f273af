"""How a node starts processes of its own, and what they may see."""
