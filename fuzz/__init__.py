"""Coverage-guided fuzzing of whatever reads what others wrote."""
