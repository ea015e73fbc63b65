"""The version: packages read it from here, and so does whoever writes it into what is kept."""

__version__ = "0.2.0"
