"""Run the work of a store on the event loop of its database driver, and report its effects to the store's listener.

Nothing here knows a database: the PostgreSQL store and the object store derive their drivers from this one.
Start with `driver.py`; `link.py` crosses from the caller's loop to the driver's, `notices.py` collects the reports.
"""
