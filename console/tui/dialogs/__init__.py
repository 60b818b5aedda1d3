"""The dialogs over a screen: forms, plans, confirmations."""
