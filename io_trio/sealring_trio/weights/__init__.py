"""Files of the model between members, over WEIGHTS links: giving and asking."""
