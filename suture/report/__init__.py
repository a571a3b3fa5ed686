"""Report: a result in words, tables and figures, on one page that works offline, and on the
console.

Every function takes the plain content of ``result.json``: nothing here can read a row or reach a
site. `console` and `words` load quickly; `figures` and `page` load Altair, so import them where they
are needed.
"""
