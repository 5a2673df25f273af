"""Files that people write for the daemon: its config, allowed names, certificates."""
