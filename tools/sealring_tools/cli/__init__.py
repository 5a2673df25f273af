"""What is typed after `sealring bench`, `sealring peer` and `sealring decode`."""
