"""The report page: one HTML file that holds a record, what draws it, and how it looks.

``page.html``, ``page.css`` and the scripts are the page; the modules here make the JSON that it
reads. Nothing of a program is written into HTML by Python.
"""
