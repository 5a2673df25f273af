"""Look-ahead: a rank builds and launches its next graph before its input comes."""
