"""pytest's way to a mutant of `spec.mutate`: ``-p spec.mutate_plugin``, before anything else."""

from spec.mutate import install

install()
