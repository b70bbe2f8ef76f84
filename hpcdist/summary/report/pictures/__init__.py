"""The report in pictures, drawn with matplotlib, which is imported where it is used."""
