"""All links of a node."""
