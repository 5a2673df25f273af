"""Runs a sealring node on trio: its sockets, its engine and the files of its model.

`node.service.prepare` reads what a config names, and `node.service.running` is a node at work. This
package serves no HTTP and has no command: the package `sealring` adds both.
"""
