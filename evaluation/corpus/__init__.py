"""Our prices against compilers, on programs of many kinds; others wrote more than half of them.

``programs`` names the programs by family, ``plans`` chooses shardings, ``compiled`` has compilers
judge the plans and keeps the rows, ``confirmed`` has compilers judge searches, and ``figures``
makes docs/corpus.md from the rows. A third of the families is held out: no rule is read off them,
and nothing is fitted to them.

``python -m evaluation corpus compile|search|price|fit|confirm|figures|list``; the packages are in
``requirements.txt``.
"""
