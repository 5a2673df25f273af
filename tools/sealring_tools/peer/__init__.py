"""A peer without a model, for whoever builds another implementation of sealring/1 to talk to.

`line` is one link on one socket, as a stream of messages. `playing` has the two parts that the peer
can play by itself: the head of a ring of two, and the rank after it, which gives back the hidden
states that it gets. `script` plays what a file says instead.
"""
