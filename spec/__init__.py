"""The specification of sealring/1, its vectors, and what keeps both true to the code."""
