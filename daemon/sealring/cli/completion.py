"""`sealring completion`."""

from __future__ import annotations

from typing import Literal


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print what has a shell complete commands and their options.

        sealring completion bash > ~/.local/share/bash-completion/completions/sealring
        sealring completion zsh > ~/.zfunc/_sealring
        sealring completion fish > ~/.config/fish/completions/sealring.fish

    The folder must be there; for zsh, ~/.zshrc must have 'fpath+=~/.zfunc'
    before 'compinit'. Print it again once you have another version of
    sealring.

    Next: a new shell, which then has it.

    Parameters
    ----------
    shell
        Which one.
    """
    from sealring.cli import build_app  # noqa: PLC0415 - it has this command among its own

    print(build_app().generate_completion(prog_name="sealring", shell=shell), end="")
