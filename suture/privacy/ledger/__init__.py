"""A site's ledger: every charge in a hash chain, kept before anything leaves."""
