"""The summary as one page to send to others: a single file that loads nothing.

`again` says how a run is run again, `inline_svg` makes pictures a part of the page, `contents`
gathers what the page shows, and `rendering` fills templates/report.html.j2 with it. Whatever comes
from runs is escaped by the template.
"""
