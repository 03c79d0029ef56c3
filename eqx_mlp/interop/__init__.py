"""Doors to other libraries: their interfaces, this library's engine."""
