"""The privacy promise: accounting, ledger, noise, charter, statement, and the door that everything
leaves through."""
