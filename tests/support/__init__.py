"""Code shared by tests of several rooms. Importable as `support` (`pythonpath = tests`); never shipped."""
