"""bitbake imports this; nothing here serves hashes or revisions."""


def create_client(*_args, **_kwargs):
    """There is no server."""
    raise NotImplementedError
