"""The page, which shows the ring at work. Its files are in `static`, as a browser takes them."""
