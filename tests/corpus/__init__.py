"""Prices against compilers on programs of many kinds, more than half of them written by others.

``programs`` names them by family, ``plans`` chooses shardings, ``compiled`` has compilers judge
them and keeps the rows, ``confirmed`` has them judge searches, ``figures`` makes docs/corpus.md
from the rows.  A third of the families is held out: no rule is read off them, nothing is fitted
to them.

``python -m tests.corpus compile|search|price|fit|confirm|figures|list``; the packages are in
``requirements.txt``.
"""
