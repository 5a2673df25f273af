"""What a hostile user, member or local account may try, as far as it can be shown in seconds."""
