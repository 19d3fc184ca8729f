"""What people see: words for events, tables, the live screen, plain progress lines, and the report at the end."""
