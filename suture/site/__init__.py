"""The hospital wall: the only room that reads rows.

What the other rooms may use: `schema` (public declarations) and `cohort.SiteData` (encoded rows,
which stay in the site's process). Every count and warning made here is computed from rows and is
meant for the site's own operator.
"""
