"""The gateway under load: long histories, many followers."""
