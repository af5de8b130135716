"""Training: schedule, loss, updates, validation, and a run that can be continued."""
