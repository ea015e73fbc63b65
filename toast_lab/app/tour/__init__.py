"""The guided tour: the paper's figures, each reproduced on the real program.

Takes: a ``Session``, which it moves from step to step. Gives: texts, tasks, and the parts of the
page to outline. Nothing here knows about pages: ``toast_lab.app.tour_strip`` shows the tour. Start
reading at ``tour.Tour``.
"""
