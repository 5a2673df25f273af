"""The tiny language model that ships with sealring: where it lies, and a prompt to show it."""

from pathlib import Path

# Copying, counting and about 900 tokens in one reply: a wrong position or cache shows at once.
DEFAULT_PROMPT = "Tell me a long story about a fox named Pip."


def path() -> Path:
    """Return the folder of the model, in the layout that ``mlx_lm.load`` takes.

    Nothing heavy is imported here, so that commands which only need the path stay fast.
    """
    return Path(__file__).resolve().parent / "weights"
