"""The documentation's site: pages for people, and what generates the parts that the code knows."""
