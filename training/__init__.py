"""How the tiny model was made: the text that it learnt, its tokenizer, its training, its marks.

The model itself is in `sealring_model.tiny`, and its README says how it was trained and how well it
does. Nothing that is installed needs this folder.
"""
