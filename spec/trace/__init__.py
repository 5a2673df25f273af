"""One link of sealring/1 told byte by byte, with every secret and every value on the way to it."""
