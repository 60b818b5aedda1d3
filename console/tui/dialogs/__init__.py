"""What is asked over a screen: forms, plans, confirmations."""
