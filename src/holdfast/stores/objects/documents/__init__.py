"""Keys and documents of the object store: their layout, their encoding, and how they are compared and swapped.

Nothing here decides about messages: the operations say what to write.
Start with `layout.py`, the list of all keys; then `document_format.py` and `cas_documents.py`.
"""
