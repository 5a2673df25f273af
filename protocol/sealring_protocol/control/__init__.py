"""Who does what, when: partition, epochs, rows, steps."""
