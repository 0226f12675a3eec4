"""Keys and documents of the object store: where each lies, how it is encoded, and how it is compared and swapped.

Nothing here decides about messages: the operations say what to write.
Start with `layout.py`, the list of all keys; then `document_format.py` and `cas_documents.py`.
"""
