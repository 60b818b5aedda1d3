"""What an operator can do with a queue, as data: verbs, the fields of their forms, their words."""
