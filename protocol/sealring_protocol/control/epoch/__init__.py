"""One epoch as each rank sees it: pipeline or collective, its ledger and its deadlines."""
