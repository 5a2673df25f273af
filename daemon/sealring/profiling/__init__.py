"""`sealring profile`: where the time of a token goes, from what running nodes record."""
