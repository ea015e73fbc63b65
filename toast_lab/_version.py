"""The version of TOAST Lab; packaging, and code that records it in kept results, read it here."""

__version__ = "0.2.0"
