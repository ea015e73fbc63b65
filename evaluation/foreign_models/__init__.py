"""Models written by others and installed from PyPI, as ``module:make`` functions.

See docs/foreign_models.md.
"""
