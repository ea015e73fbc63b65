"""The guided tour: the paper's figures, each done on the real program.

Takes a ``Session`` and moves it; gives texts, tasks and what to point at.  Nothing here knows that
there are pages: ``toast_lab.app.tour_strip`` shows it.  Start reading at ``tour.Tour``.
"""
