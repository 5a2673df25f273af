"""Every class of mlx-lm's as a small random checkpoint, split in every way, beside mlx-lm itself.

``python -m tests.families``                 every family; takes about half an hour
``python -m tests.families NAME...``         these
``python -m tests.families --write``         every family, and writes the table of docs/models.md
``python -m tests.families --json``          the results as JSON

`configs.json` has one configuration for each class of mlx-lm 0.32.2 that is a model: those of
mlx-lm's own tests (MIT licence), made smaller, and ours for the classes that its tests leave out.
`test_families.py` runs those that together use every mechanism.
"""
