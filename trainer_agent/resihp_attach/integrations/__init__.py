"""Adapters, each for one framework, imported only where the framework is. docs/attach.md says what was run where."""
