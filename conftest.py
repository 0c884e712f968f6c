"""For every test of the repository."""

from hypothesis import settings

# A busy machine makes an example slow, not wrong.
settings.register_profile("hone", deadline=None)
settings.load_profile("hone")
