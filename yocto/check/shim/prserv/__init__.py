"""bitbake imports this; nothing here serves hashes or revisions."""
