"""Reports: one HTML file that explains a plan to somebody who has neither the model nor a server.

Takes: a ``Problem`` and plans, with what was compiled and measured of them if anything was.  Gives:
a page that needs no network: summary, plan, and the evidence for it, linked with each other.
Nothing is searched, compiled or executed for it.  Start reading at ``report.report``.
"""
