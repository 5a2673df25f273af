"""Integers, frames, tensors and messages: their encoding and decoding."""
