"""Delivery: slots that send batches, and the auxiliary jobs that keep the store in order."""
