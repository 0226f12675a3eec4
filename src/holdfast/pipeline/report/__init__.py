"""The report: figures of a lake's events as tables, and one page of HTML with plots."""
