"""Whole engines on a GPU: ``pytest -m gpu``."""
