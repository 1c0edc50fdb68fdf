"""The report page: one HTML file with a record, a script that draws it, and a style.

``page.html``, ``page.css`` and the scripts are the page. The modules here make the JSON that the
scripts read. Python writes no part of a program into the HTML itself.
"""
