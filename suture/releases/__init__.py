"""Single noisy figures about one site's column, charged to its ledger first."""
