"""Integers, frames, tensors and messages: values to bytes and back."""
