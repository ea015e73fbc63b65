"""How good TOAST Lab is: harnesses that measure prices, rules, plans and speed, and their results.

``python -m evaluation NAME`` runs one of them, ``python -m evaluation`` lists them; README.md says
what each takes and writes. Nothing here is installed with the package, which knows nothing of it.
"""
