"""Nothing here serves revisions."""
