"""Finding a model, reading its tensors, and making a rank's stage of them."""
