"""Maps every failure to an HTTP status code and an error body."""
