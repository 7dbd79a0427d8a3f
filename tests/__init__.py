"""A package, so that shared pieces have a full name: ``from tests.fakes import FakeRunner``."""
