"""Reports: one HTML file that explains a plan to somebody who has neither the model nor a server.

Takes: a ``Problem`` and plans, with their compiled programs and measurements if there are any.
Gives: a page that needs no network, with the summary, the plan and the evidence for it linked to
each other. It searches, compiles and executes nothing. Start reading at ``report.report``.
"""
