"""Run files and task rows: schema, overrides, conversion, and errors that name file, line and field."""
