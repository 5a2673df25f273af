"""Is what a ring answers right, and if not, where does it first go wrong? (`sealring verify`)"""
