"""A federation over a network.

| module | what it does | side |
|---|---|---|
| `coordinator` | drives rounds at sites that are elsewhere, over a carrier | coordinator |
| `local` | a carrier that starts a hub and its sites on this machine | coordinator |
| `hub`, `enrolment` | Flower's SuperLink with a guard in front; who is known there | hub |
| `node`, `settings` | what answers requests; the site's own decisions | site |
| `masking`, `witnesses` | sums under masks; peers that remember a ledger | coordinator and site |
| `wire` | what can be said | coordinator and site |
| `certificates`, `flower` | keys; connections, the only module that imports Flower | all |
"""
