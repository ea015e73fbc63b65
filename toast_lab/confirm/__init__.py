"""A search whose result a compiler has confirmed.

Takes a problem and a judge (``tpu:v5e:4x4``, ``gpu:h100:8``, attached devices). Gives a
``ConfirmedResult``: which plans were judged, by which clock, and whether the best is confirmed or
only priced. Start reading at ``loop.py``. The paper measures its final plans on devices (section
5), but does not feed the measurements back into the search.
"""
