"""The summary as text, tables, pictures and pages."""
