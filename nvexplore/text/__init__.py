"""Text out of token ids: bit by bit, up to a stop string, and the rule of one BOS. Knows no model, engine or torch."""
