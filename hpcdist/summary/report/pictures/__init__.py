"""The report in pictures, drawn with matplotlib, which is imported where it is used.

`catalogue` lists the pictures that a section has; `series` reads what only pictures need of the
events; the other modules draw.
"""
