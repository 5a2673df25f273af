"""How machines join a cluster, and how its roster is changed."""
