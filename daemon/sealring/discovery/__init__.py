"""Finds machines of one private network by multicast DNS, and says nothing about whom to trust."""
