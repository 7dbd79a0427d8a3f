"""The engine: decides what each step runs and where every token goes. Needs no torch."""
