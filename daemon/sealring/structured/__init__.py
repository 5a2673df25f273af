"""Answers that are held to a form: schemas, grammars and calls of tools, as llguidance has them."""
