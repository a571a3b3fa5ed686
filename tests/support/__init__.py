"""What many tests share: small studies, rows, hospitals on a bench, and processes to break."""
