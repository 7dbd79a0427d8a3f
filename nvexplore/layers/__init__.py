"""Parameters of a model's layers: shapes, sharding, and where checkpoint tensors go. Computes nothing."""
