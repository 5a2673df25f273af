"""Files that people and nodes write: configs, keys, rosters, models."""
