"""A design of somebody else's, as README says that one is added: its value and its SQL."""
