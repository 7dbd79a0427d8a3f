"""Computes what the engine decided: batches, weights, the KV pool. Importing it imports no torch."""
