"""The engine of one node, as its node sees it: started, supervised, several as one."""
