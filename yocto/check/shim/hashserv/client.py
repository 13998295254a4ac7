"""Nothing here serves hashes."""
