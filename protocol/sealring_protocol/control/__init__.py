"""The control machines: membership, epochs, the plan, scheduling and steps."""
