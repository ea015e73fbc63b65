"""The version, for whoever writes it into what is kept."""

__version__ = "0.1.0"
